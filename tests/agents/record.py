"""Keeps small replayable copies of what agents sent: `python -m tests.agents.record RECORDS`.

Of the requests of a run, in `RECORDS/requests.jsonl`, those are kept that have something in them that none before had:
a field, a type of an item, a role. Long texts are cut, and what tells of a person or a machine is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.agents.agents import EYES

KEPT = Path(__file__).parents[1] / "integration" / "recorded_agents.jsonl"
# Headers that say how an answer is wanted.
_HEADERS = ("anthropic-version", "anthropic-beta", "user-agent", "accept")
# Characters of a text that are kept.
_SHORT = 40
# Fields that say what things are, by which a request is new.
_SAYS = {"type", "role", "status"}
_PERSONAL = [
    (re.compile(r"\[turn:[\w-]+\] ?"), ""),
    (
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        "00000000-0000-4000-8000-000000000000",
    ),
    (re.compile(r"[0-9a-f]{40,}"), "0" * 40),
    (re.compile(r"(/[\w.-]+)+/agents\d+/[\w-]+"), "/home/someone/work"),
]


def shape(value: Any, where: str = "") -> Iterator[str]:
    """What a body has in it, its places in lists and its texts left out."""
    if isinstance(value, dict):
        for name, item in value.items():
            # Parameters of tools are the agents' own.
            if name not in ("parameters", "input_schema", "arguments", "input") or not isinstance(item, dict):
                yield from shape(item, f"{where}.{name}")
            if name in _SAYS:
                yield f"{where}.{name}={item}"
    elif isinstance(value, list):
        for item in value:
            yield from shape(item, f"{where}[]")
    else:
        yield f"{where}:{type(value).__name__}"


def small(value: Any) -> Any:
    """A copy with short texts that name nobody."""
    if isinstance(value, dict):
        return {name: small(item) for name, item in value.items()}
    if isinstance(value, list):
        return [small(item) for item in value]
    if not isinstance(value, str):
        return value
    for pattern, replacement in _PERSONAL:
        value = pattern.sub(replacement, value)
    # The arguments of a call are JSON, which must stay whole.
    return value if len(value) <= _SHORT or value.startswith("{") else f"{value[:_SHORT]}…"


def kept(requests: Path) -> Iterator[dict[str, Any]]:
    """The requests worth keeping, by agent."""
    known: set[str] = set()
    for line in requests.read_text().splitlines():
        request = json.loads(line)
        if request["body"]["model"] == EYES:
            # The test of these requests has a model without eyes.
            continue
        agent = re.split(r"[/ ]", request["headers"].get("user-agent", ""))[0]
        seen = {f"{agent} {request['path']} {part}" for part in shape(request["body"])}
        if not seen <= known:
            known |= seen
            headers = {name: value for name, value in request["headers"].items() if name in _HEADERS}
            yield {"path": request["path"], "headers": headers, "body": small(request["body"])}


if __name__ == "__main__":
    KEPT.write_text("".join(f"{json.dumps(request)}\n" for request in kept(Path(sys.argv[1]) / "requests.jsonl")))
