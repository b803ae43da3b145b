"""What keys have used: one entry for each request, and sums of them."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

Group = Literal["day", "key", "model", "adapter"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""What usage can be grouped by, besides labels."""
LABEL = "label:"
"""Prefix of a label's name in `group_by`."""
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
"""What is summed up for each group."""

Totals = dict[tuple[str, ...], list[int]]
"""`COUNTS` by the values of `GROUPS` and the labels, as JSON."""


@dataclass(frozen=True)
class UsageEntry:
    """Usage of one request.

    Attributes:
        at: end of the request, in seconds since the epoch.
        key: name of the sender's key.
        labels: labels of that key.
    """

    at: float
    id: str
    key: str
    model: str
    adapter: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Parse a line; None if a process died while writing the line."""
        try:
            values = json.loads(line)
            # Entries of earlier versions have no labels.
            return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})
        except (ValueError, LookupError, TypeError):
            return None

    @property
    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def group(self) -> tuple[str, ...]:
        """The values of `GROUPS`, and the labels as JSON."""
        labels = json.dumps(dict(self.labels), sort_keys=True) if self.labels else ""
        return (day_of(self.at), self.key, self.model, self.adapter, labels)

    def add_to(self, totals: Totals) -> None:
        counts = totals.setdefault(self.group, [0] * len(COUNTS))
        for index, amount in enumerate((1, self.prompt_tokens, self.cached_tokens, self.completion_tokens)):
            counts[index] += amount


def day_of(at: float) -> str:
    """The day of a time, in UTC, such as 2026-01-31."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def today() -> str:
    """The current day, in UTC."""
    return day_of(time.time())


def usage_rows(totals: Iterable[Totals], group_by: Sequence[str]) -> list[dict[str, Any]]:
    """Sums by group, in order.

    Args:
        group_by: some of `GROUPS`, and `label:` with the name of a label.
    """
    sums: Totals = {}
    for part in totals:
        for values, counts in part.items():
            *others, labels = values
            group: dict[str, str] = dict(zip(GROUPS, others, strict=True))
            if labels:
                group |= {LABEL + name: value for name, value in json.loads(labels).items()}
            row = sums.setdefault(tuple(group.get(name, "") for name in group_by), [0] * len(COUNTS))
            for index, amount in enumerate(counts):
                row[index] += amount
    return [
        {**dict(zip(group_by, values, strict=True)), **dict(zip(COUNTS, counts, strict=True))}
        for values, counts in sorted(sums.items())
    ]
