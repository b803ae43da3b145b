"""Files of OpenAI's Batch API: requests in, answers and errors out, one JSON object a line.

Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rayllm.endpoints import BY_PATH

MOST_FAULTS = 100
"""Faults that are told of one file."""
_KEYS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a batch, or with one of its lines, which count from 1; as in a batch's `errors`."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


@dataclass(frozen=True)
class Line:
    """One request."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]


def read(lines: Iterable[bytes]) -> Iterator[Line | Fault]:
    """The requests of a file, and what is wrong with those lines that are none. Empty lines are passed over."""
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            yield _line(number, raw)


def check(lines: Iterable[bytes], endpoint: str | None, most: int | None) -> tuple[int, list[Fault]]:
    """The number of requests in a file and what is wrong with it: the first faults, in the order of its lines.

    Args:
        lines: the file.
        endpoint: the path that all requests are for; None lets each have its own.
        most: requests that there may be; None is any number.
    """
    seen: dict[str, int] = {}
    faults: list[Fault] = []
    count = 0
    for found in read(lines):
        count += 1
        fault = found if isinstance(found, Fault) else _fault(found, endpoint, seen)
        if fault and len(faults) < MOST_FAULTS:
            faults.append(fault)
        if most is not None and count > most:
            return count, [Fault("too_many_tasks", f"a batch may hold {most} requests; split the file.")]
    if not count:
        faults.append(Fault("empty_file", "the file holds no requests."))
    return count, faults


def answer(custom_id: str, status: int | None, response: Any, error: Fault | None) -> bytes:
    """A line of an output or error file."""
    told = None
    if status is not None:
        told = {"status_code": status, "request_id": uuid.uuid4().hex, "body": response}
    problem = {"code": error.code, "message": error.message} if error else None
    line = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": told, "error": problem}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _line(number: int, raw: bytes) -> Line | Fault:
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return Fault("invalid_json_line", f"this is no JSON: {error}.", number)
    if not isinstance(entry, dict):
        return Fault("invalid_request", "a request must be an object.", number)
    for key in ("custom_id", "url", "body"):
        if key not in entry:
            return Fault("missing_required_parameter", f"`{key}` is missing.", number, key)
    if unknown := sorted(entry.keys() - _KEYS):
        known = ", ".join(sorted(_KEYS))
        return Fault("unknown_parameter", f"`{unknown[0]}` means nothing here; known are {known}.", number, unknown[0])
    if not isinstance(entry["custom_id"], str) or not entry["custom_id"]:
        return Fault("invalid_custom_id", "`custom_id` must be a text that is not empty.", number, "custom_id")
    if entry.get("method", "POST") != "POST":
        return Fault("invalid_method", "`method` must be POST.", number, "method")
    if not isinstance(entry["body"], dict):
        return Fault("invalid_request", "`body` must be an object.", number, "body")
    if not isinstance(entry["body"].get("model"), str):
        return Fault("missing_required_parameter", "`body.model` must name the model.", number, "body.model")
    if entry["body"].get("stream"):
        return Fault("invalid_request", "answers of a batch are whole; leave `stream` out.", number, "body.stream")
    return Line(number, entry["custom_id"], str(entry["url"]), entry["body"])


def _fault(line: Line, endpoint: str | None, seen: dict[str, int]) -> Fault | None:
    before = seen.setdefault(line.custom_id, line.number)
    if before != line.number:
        message = f"the `custom_id` {line.custom_id!r} is that of line {before} already."
        return Fault("duplicate_custom_id", message, line.number, "custom_id")
    if line.url not in BY_PATH or BY_PATH[line.url].is_form:
        known = ", ".join(path for path, found in BY_PATH.items() if not found.is_form)
        return Fault(
            "invalid_url", f"{line.url!r} takes no requests of a batch; these do: {known}.", line.number, "url"
        )
    if endpoint is not None and line.url != endpoint:
        message = f"`url` must be {endpoint}, as the batch says, not {line.url!r}."
        return Fault("mismatched_endpoint", message, line.number, "url")
    return None
