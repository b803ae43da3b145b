"""The JSONL format of OpenAI's Batch API: requests in, responses and errors out.

Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, BinaryIO

from rayllm.core.endpoints import IN_BATCHES
from rayllm.core.errors import RequestError
from rayllm.core.json_body import parse_body

LONGEST_LINE = 32 * 1024 * 1024
MAX_FAULTS = 100
"""Faults reported for one file."""
OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
"""Files of results, in the job's folder."""
_LONGEST_ID = 512
_KEYS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True)
class Fault:
    """An entry of a batch's `errors`. Lines count from 1."""

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


@dataclass
class Counts:
    """Requests of a job: total, completed and failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0


def bounded(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """Lines of a file, each cut just above `longest` bytes."""
    while line := file.readline(longest + 2):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(longest + 2)
        yield line


def read(lines: Iterable[bytes], longest: float = inf) -> Iterator[Line | Fault]:
    """Parse the lines of a file to requests, or to faults if invalid. Blank lines are skipped."""
    for number, raw in enumerate(lines, 1):
        if raw.strip():
            yield _line(number, raw, longest)


def check(
    lines: Iterable[bytes], endpoint: str | None, max_requests: int | None, longest: int = LONGEST_LINE
) -> tuple[int, list[Fault]]:
    """Count the requests of a file, and collect its first faults.

    Args:
        endpoint: path that all requests must be for; None allows any.
        max_requests: most requests; None is no limit.
        longest: most bytes of a line.
    """
    seen: dict[str, int] = {}
    faults: list[Fault] = []
    count = 0
    for line in read(lines, longest):
        count += 1
        fault = line if isinstance(line, Fault) else _fault(line, endpoint, seen)
        if fault and len(faults) < MAX_FAULTS:
            faults.append(fault)
        if max_requests is not None and count > max_requests:
            return count, [Fault("too_many_tasks", f"a batch may hold {max_requests} requests; split the file.")]
    if not count:
        faults.append(Fault("empty_file", "the file holds no requests."))
    return count, faults


def response_line(custom_id: str, status: int | None, body: Any, error: Fault | None) -> bytes:
    """A line of an output or error file."""
    response = None if status is None else {"status_code": status, "request_id": uuid.uuid4().hex, "body": body}
    line = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": {"code": error.code, "message": error.message} if error else None,
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _line(number: int, raw: bytes, longest: float) -> Line | Fault:
    if len(raw.removesuffix(b"\n").removesuffix(b"\r")) > longest:
        return Fault("request_too_large", f"a request may have at most {longest} bytes.", number)
    try:
        entry = parse_body(raw)
    except RequestError as error:
        return Fault("invalid_json_line", error.message, number)
    for key in ("custom_id", "url", "body"):
        if key not in entry:
            return Fault("missing_required_parameter", f"`{key}` is missing.", number, key)
    if unknown := sorted(entry.keys() - _KEYS):
        keys = ", ".join(sorted(_KEYS))
        return Fault("unknown_parameter", f"`{unknown[0]}` is unknown; known keys: {keys}.", number, unknown[0])
    if not isinstance(entry["custom_id"], str) or not 0 < len(entry["custom_id"]) <= _LONGEST_ID:
        message = f"`custom_id` must be a string of 1 to {_LONGEST_ID} characters."
        return Fault("invalid_custom_id", message, number, "custom_id")
    if entry.get("method", "POST") != "POST":
        return Fault("invalid_method", "`method` must be POST.", number, "method")
    if not isinstance(entry["body"], dict):
        return Fault("invalid_request", "`body` must be an object.", number, "body")
    if not isinstance(entry["body"].get("model"), str):
        return Fault("missing_required_parameter", "`body.model` must name the model.", number, "body.model")
    if entry["body"].get("stream"):
        return Fault("invalid_request", "batches do not stream; leave `stream` out.", number, "body.stream")
    return Line(number, entry["custom_id"], str(entry["url"]), entry["body"])


def _fault(line: Line, endpoint: str | None, seen: dict[str, int]) -> Fault | None:
    first = seen.setdefault(line.custom_id, line.number)
    if first != line.number:
        message = f"line {first} already has the `custom_id` {line.custom_id!r}."
        return Fault("duplicate_custom_id", message, line.number, "custom_id")
    if line.url not in IN_BATCHES:
        message = f"{line.url!r} is not available in batches; use one of {', '.join(IN_BATCHES)}."
        return Fault("invalid_url", message, line.number, "url")
    if endpoint is not None and line.url != endpoint:
        message = f"`url` must be the batch's endpoint, {endpoint}, not {line.url!r}."
        return Fault("mismatched_endpoint", message, line.number, "url")
    return None
