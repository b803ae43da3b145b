"""JSON schemas with a whitespace pattern, as regular expressions: vLLM's backends ignore the pattern.

The regular expression repeats parts of itself, so that a schema of a few lines may become one of gigabytes. So it is
made in a process of its own, which the kernel ends where it goes too far.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from rayllm.engine.structured_output.bounded_work import BoundedWork
from rayllm.engine.structured_output.constraint import Constraint, refusal
from rayllm.engine.structured_output.json_schema import MAX_PATTERN
from rayllm.engine.structured_output.limits import MAX_CHARACTERS, check_limits
from rayllm.engine.structured_output.process_limits import TOO_COSTLY
from rayllm.errors import RequestError

Body = dict[str, Any]


class WhitespacePatterns:
    """Puts the regular expression in the place of each schema with a whitespace pattern."""

    def __init__(self) -> None:
        self._regex: BoundedWork[dict[str, str]] = BoundedWork(_convert)

    async def resolve(self, body: Body) -> Body:
        """`body`, or one like it where its `structured_outputs` had a `whitespace_pattern` and a `json`.

        Raises:
            RequestError: the schema is broken or too costly, or the pattern too long.
            UnavailableError: too many schemas are waiting.
        """
        asked = body.get("structured_outputs")
        if not isinstance(asked, dict) or asked.get("whitespace_pattern") is None:
            return body
        rest = {name: value for name, value in asked.items() if name not in ("json", "whitespace_pattern")}
        regex = await self._made(asked["json"], asked["whitespace_pattern"])
        return {**body, "structured_outputs": {**rest, "regex": regex}}

    async def _made(self, schema: Any, pattern: str) -> str:
        constraint = Constraint("structured_outputs", "json", schema)
        check_limits(constraint)
        if len(pattern) > MAX_PATTERN:
            message = f"`structured_outputs.whitespace_pattern` is longer than {MAX_PATTERN} characters."
            raise RequestError(message, "structured_outputs")
        made = await self._regex.answer(schema if isinstance(schema, str) else json.dumps(schema), pattern)
        if "fault" in made:
            raise refusal(constraint, f"cannot be used with a whitespace pattern: it {made['fault']}")
        return made["regex"]


async def _convert(schema: str, pattern: str) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rayllm.engine.structured_output.whitespace_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    asked = {"schema": schema, "pattern": pattern, "longest": MAX_CHARACTERS["regex"]}
    told, _ = await process.communicate(json.dumps(asked).encode())
    made: dict[str, str] = json.loads(told) if process.returncode == 0 else {"fault": TOO_COSTLY}
    return made
