from __future__ import annotations

import io
import json
from typing import Any

import pytest

from rayllm.batch.files.jsonl import Fault, Line, bounded, check, read, response_line

CHAT = "/v1/chat/completions"


def request(custom_id: str = "a", **keys: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **keys}


def lines(*entries: Any) -> list[bytes]:
    return [json.dumps(entry).encode() + b"\n" for entry in entries]


def test_requests_are_read_with_their_line_numbers_past_empty_lines() -> None:
    found = list(read([*lines(request("a")), b"\n", *lines(request("b"))]))
    assert [(line.number, line.custom_id) for line in found if isinstance(line, Line)] == [(1, "a"), (3, "b")]


class Reads(io.BytesIO):
    """A file that remembers its longest read."""

    longest = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.longest = max(self.longest, len(line))
        return line


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_that_is_too_long_is_refused_without_being_kept(end: bytes) -> None:
    short = lines(request("a"))[0]
    file = Reads(short + b"[]," * 100_000 + b"\n" + short + b"x" * 999_999 + end)
    count, faults = check(bounded(file, 1000), None, None, 1000)
    assert count == 4
    found = [(fault.code, fault.line) for fault in faults]
    assert found == [("request_too_large", 2), ("duplicate_custom_id", 3), ("request_too_large", 4)]
    assert "at most 1000 bytes" in faults[0].message
    assert file.longest == 1002


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize(("more", "expected"), [(0, []), (1, ["request_too_large"])])
def test_the_end_of_a_line_does_not_count(end: bytes, more: int, expected: list[str]) -> None:
    line = lines(request("a"))[0].removesuffix(b"\n")
    count, faults = check(bounded(io.BytesIO(line + end), len(line) - more), None, None, len(line) - more)
    assert (count, [fault.code for fault in faults]) == (1, expected)


def test_a_sound_file_has_no_faults() -> None:
    assert check(lines(request("a"), request("b", method="POST")), CHAT, 2) == (2, [])


@pytest.mark.parametrize(
    ("raw", "code", "param", "expected"),
    [
        (b"{", "invalid_json_line", None, "not valid JSON"),
        (b"[" * 100_000, "invalid_json_line", None, "nested deeper than 64 levels"),
        (b'{"a": [' + b"[]," * 1_000_000 + b"1]}", "invalid_json_line", None, "more than 100000 objects and lists"),
        (b"\xff", "invalid_json_line", None, "not valid UTF-8"),
        (b"3", "invalid_json_line", None, "must be a JSON object"),
        (b'{"custom_id": "a"}', "missing_required_parameter", "url", "`url` is missing"),
        (json.dumps(request(bodi={})).encode(), "unknown_parameter", "bodi", "is unknown; known keys: body"),
        (json.dumps(request("")).encode(), "invalid_custom_id", "custom_id", "1 to 512 characters"),
        (json.dumps(request("x" * 513)).encode(), "invalid_custom_id", "custom_id", "1 to 512 characters"),
        (json.dumps(request(method="GET")).encode(), "invalid_method", "method", "must be POST"),
        (json.dumps(request(body=[])).encode(), "invalid_request", "body", "must be an object"),
        (json.dumps(request(body={})).encode(), "missing_required_parameter", "body.model", "must name the model"),
        (
            json.dumps(request(body={"model": "m", "stream": True})).encode(),
            "invalid_request",
            "body.stream",
            "leave `stream` out",
        ),
        (json.dumps(request(url="/v1/files")).encode(), "invalid_url", "url", "use one of /v1/chat/completions"),
        (json.dumps(request(url="/v1/audio/transcriptions")).encode(), "invalid_url", "url", "is not available"),
        (
            json.dumps(request(url="/v1/embeddings")).encode(),
            "mismatched_endpoint",
            "url",
            f"endpoint, {CHAT}, not",
        ),
    ],
)
def test_a_faulty_line_is_named(raw: bytes, code: str, param: str | None, expected: str) -> None:
    count, faults = check([*lines(request("first")), raw], CHAT, None)
    assert count == 2
    (fault,) = faults
    assert (fault.code, fault.line, fault.param) == (code, 2, param)
    assert expected in str(fault)


def test_every_request_needs_an_id_of_its_own() -> None:
    _, faults = check(lines(request("a"), request("b"), request("a")), CHAT, None)
    assert faults == [
        Fault("duplicate_custom_id", "line 1 already has the `custom_id` 'a'.", 3, "custom_id"),
    ]


def test_an_empty_file_and_one_that_is_too_long() -> None:
    assert check([b"\n"], CHAT, 5)[1][0].code == "empty_file"
    assert check(lines(*(request(str(i)) for i in range(6))), CHAT, 5)[1][0].code == "too_many_tasks"


def test_only_so_many_faults_are_told() -> None:
    assert len(check([b"{"] * 1000, CHAT, None)[1]) == 100


def test_an_answer_has_openais_shape() -> None:
    expected = json.loads(response_line("a", 200, {"id": "x"}, None))
    assert expected["custom_id"] == "a"
    assert expected["response"]["status_code"] == 200
    assert expected["response"]["body"] == {"id": "x"}
    assert expected["error"] is None
    expired = json.loads(response_line("a", None, None, Fault("batch_expired", "too late")))
    assert expired["response"] is None
    assert expired["error"] == {"code": "batch_expired", "message": "too late"}
