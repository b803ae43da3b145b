"""Parse files of prompts: JSON lines, or plain text with one prompt per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# Fields that request several completions.
_MULTIPLE = ("n", "best_of")


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    number: int
    """Counts from 1, including blank lines."""
    request: dict[str, Any]
    """Fields of the request, with either `prompt` or `messages`; empty if the line is invalid."""
    fault: str = ""


def read_lines(text: str) -> list[Line]:
    """Parse the non-blank lines of a file: JSON if the first begins with a brace, else prompts."""
    # Not `splitlines`: JSON may contain other line separators unescaped.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if lines and not lines[0][1].lstrip().startswith("{"):
        return [Line(number, {"prompt": line.rstrip("\r")}) for number, line in lines]
    return [_read(number, line) for number, line in lines]


def _read(number: int, line: str) -> Line:
    try:
        request = json.loads(line)
    except ValueError as error:
        return Line(number, {}, f"is not valid JSON: {error}.")
    if not isinstance(request, dict):
        return Line(number, {}, "is not a JSON object.")
    fault = _fault(request)
    return Line(number, {} if fault else request, fault)


def _fault(request: dict[str, Any]) -> str:
    if ("prompt" in request) == ("messages" in request):
        return "needs one of `prompt` and `messages`."
    if not isinstance(request.get("prompt", ""), str) or not isinstance(request.get("messages", []), list):
        return "`prompt` must be a string, `messages` a list."
    multiple = [name for name in _MULTIPLE if request.get(name) not in (None, 1)]
    return f"`{multiple[0]}`: a line gets one completion; use `rayllm batch run` for more." if multiple else ""
