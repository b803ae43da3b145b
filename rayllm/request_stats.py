"""What an engine did for one request, as replicas tell routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from starlette.types import Scope

FinishReason = Literal["stop", "length", "abort", ""]
_EXTENSION = "rayllm.request_stats"
STATS_COMMENT = b": rayllm-stats "
"""Begins the comment at the end of a stream of server-sent events that has the stats as JSON."""


@dataclass(frozen=True)
class RequestStats:
    """Tokens of a request, and where its time in the engine went.

    `prompt_tokens` counts each prompt once, however many answers it has; `cached_tokens` are those of them that were
    found in the KV cache; `generated_tokens` are those of all answers. The seconds follow one another: `queued_s` until
    the first sequence is scheduled, `prefill_s` until the first token, `decode_s` until the last. `finish_reason` is
    the last answer's, "abort" for an unfinished one, and "" if nothing is generated.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish_reason: FinishReason = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RequestStats:
        """Read what `as_json` wrote; keys of another version are ignored."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})

    def as_json(self) -> dict[str, Any]:
        """The values by name, as JSON."""
        return asdict(self)


class StatsSource:
    """Where a server of an ASGI application finds the stats of a request, once the application has started on it."""

    def __init__(self) -> None:
        self.read: Callable[[], RequestStats | None] = lambda: None

    def add_to(self, scope: Scope) -> None:
        """Offer this source to the application."""
        scope["extensions"] = {**scope.get("extensions", {}), _EXTENSION: self}

    @staticmethod
    def of(scope: Scope) -> StatsSource | None:
        """The source that the server offers; None if it wants no stats."""
        source: StatsSource | None = scope.get("extensions", {}).get(_EXTENSION)
        return source
