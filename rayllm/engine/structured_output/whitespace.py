"""JSON schemas with a whitespace pattern, converted to regular expressions: vLLM's backends ignore the pattern.

The regular expression repeats parts of itself, so that a few lines of schema may become gigabytes: it is built in a
subprocess with resource limits.
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
from rayllm.engine.structured_output.process_limits import TOO_COSTLY, busy, is_out_of_time
from rayllm.errors import RequestError

Body = dict[str, Any]


class WhitespacePatterns:
    """Replaces schemas with a whitespace pattern by regular expressions."""

    def __init__(self) -> None:
        self._regex: BoundedWork[dict[str, str]] = BoundedWork(_convert)

    async def resolve(self, body: Body) -> Body:
        """`body`, with a `whitespace_pattern` and its schema in `structured_outputs` replaced by a regular expression.

        Raises:
            RequestError: the schema is invalid or too expensive, or the pattern too long.
            UnavailableError: too many schemas are queued, or the machine is too busy to convert this one.
        """
        structured = body.get("structured_outputs")
        if not isinstance(structured, dict) or structured.get("whitespace_pattern") is None:
            return body
        rest = {name: value for name, value in structured.items() if name not in ("json", "whitespace_pattern")}
        regex = await self._to_regex(structured["json"], structured["whitespace_pattern"])
        return {**body, "structured_outputs": {**rest, "regex": regex}}

    async def _to_regex(self, schema: Any, pattern: str) -> str:
        constraint = Constraint("structured_outputs", "json", schema)
        check_limits(constraint)
        if len(pattern) > MAX_PATTERN:
            message = f"`structured_outputs.whitespace_pattern` is longer than {MAX_PATTERN} characters."
            raise RequestError(message, "structured_outputs")
        result = await self._regex.answer(schema if isinstance(schema, str) else json.dumps(schema), pattern)
        if "fault" in result:
            raise refusal(constraint, f"cannot be used with a whitespace pattern: it {result['fault']}")
        return result["regex"]


async def _convert(schema: str, pattern: str) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rayllm.engine.structured_output.whitespace_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    job = {"schema": schema, "pattern": pattern, "longest": MAX_CHARACTERS["regex"]}
    output, _ = await process.communicate(json.dumps(job).encode())
    if is_out_of_time(await process.wait()):
        raise busy()
    result: dict[str, str] = json.loads(output) if process.returncode == 0 else {"fault": TOO_COSTLY}
    return result
