"""Files of prompts: JSON lines, or plain text with a prompt a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# Fields that ask for several answers.
_SEVERAL = ("n", "best_of")


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    number: int
    """Counted from 1, blank lines too."""
    request: dict[str, Any]
    """Its fields, with either `prompt` or `messages`; empty where it is faulty."""
    fault: str = ""


def read_lines(text: str) -> list[Line]:
    """The lines of a file, but for blank ones. They are JSON if the first begins with a brace, else prompts."""
    # Not `splitlines`: JSON may hold other separators as they are.
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
        return "`prompt` must be a text, `messages` a list."
    several = [name for name in _SEVERAL if request.get(name) not in (None, 1)]
    return f"`{several[0]}`: a line gets one answer; `rayllm batch run` gives more." if several else ""
