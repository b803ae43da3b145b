"""Requests over HTTP, against a real endpoint."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rayllm.batch.config import HTTPRequestProcessorConfig
from rayllm.batch.rows import ERROR, Row
from rayllm.batch.stages import http
from rayllm.batch.stages.http import HTTPRequestStage, RateLimiter, wait_s
from tests.unit.batch.stages.endpoint import Endpoint, Reply

WAIT_S = 0.002


class NearPace:
    """Stands for the handle of an actor: a `RateLimiter` in this process, shared by those who hold it."""

    def __init__(self, qps: float) -> None:
        self._pace = RateLimiter(qps)
        self.wait_s = self
        self.due: list[float] = []
        """When each request may be sent, at the earliest."""

    async def remote(self) -> float:
        asked_at, seconds = time.monotonic(), self._pace.wait_s()
        self.due.append(asked_at + seconds)
        return seconds

    @property
    def calls(self) -> int:
        return len(self.due)


@contextmanager
def stage(url: str, window: int = 8, retries: int = 3, timeout_s: float = 10, **keys: Any) -> Iterator[Any]:
    headers = keys.pop("headers", {"Content-Type": "application/json"})
    pace = keys.pop("rate_limiter", None)
    times = {"max_retries": retries, "base_retry_wait_time_in_s": WAIT_S, "timeout_s": timeout_s}
    config = HTTPRequestProcessorConfig(url=url, max_concurrent_requests=window, **times, **keys)
    made = HTTPRequestStage(config, headers, pace)
    try:
        yield made
    finally:
        made._rows.call(made._session.close())


def asked(endpoint: Endpoint, *rows: Row, **keys: Any) -> list[Row]:
    """What the rows become."""
    with stage(endpoint.url, **keys) as made:
        answers: list[Row] = made(list(rows))
    return answers


def closed_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}/"


# What is sent, and what comes of it.


def test_rows_are_answered_in_order() -> None:
    with Endpoint() as endpoint:
        rows = asked(endpoint, *({"n": number} for number in range(20)))
    assert [row["echo"]["n"] for row in rows] == list(range(20))
    assert rows[3] == {"echo": {"n": 3}, "http_response": {"echo": {"n": 3}}, "status_code": 200}


@pytest.mark.parametrize(
    ("row", "sent"),
    [
        ({"body": [1, 2]}, [1, 2]),
        ({"body": {"a": None}}, {"a": None}),
        ({"body": None}, None),
        ({}, {}),
        ({"model": "m", "user": None}, {"model": "m"}),
        (
            {"model": "m", "messages": [], "sampling_params": {"temperature": 0.0, "stop": None}},
            {"model": "m", "messages": [], "temperature": 0.0},
        ),
        ({"model": "m", "sampling_params": None}, {"model": "m"}),
        (
            {"v": np.array([[1, 2]]), "n": np.float32(0.5), "deep": {"k": [np.int64(3)]}},
            {"v": [[1, 2]], "n": 0.5, "deep": {"k": [3]}},
        ),
    ],
)
def test_what_is_sent(row: Row, sent: Any) -> None:
    with Endpoint() as endpoint:
        (answer,) = asked(endpoint, row, headers={"Content-Type": "application/json", "X-Key": "secret"})
    assert answer["status_code"] == 200
    (got,) = endpoint.got
    assert got.body == sent
    assert (got.headers["Content-Type"], got.headers["X-Key"]) == ("application/json", "secret")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"body": 1, "model": "m", "n": 2}, "a row with a `body` must have no other key, but this one has model, n."),
        ({"body": {"x": b"bytes"}}, "a value of type bytes cannot be sent as JSON."),
        ({"body": datetime.now(UTC)}, "a value of type datetime cannot be sent as JSON."),
    ],
)
def test_what_cannot_be_sent_is_its_rows_fault(row: Row, expected: str) -> None:
    with Endpoint() as endpoint:
        bad, good = asked(endpoint, row, {"n": 1})
    assert bad[ERROR] == expected
    assert good["status_code"] == 200
    assert len(endpoint.got) == 1


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}, ("hi", "stop")),
        ({"choices": [{"text": "hi", "finish_reason": "length"}]}, ("hi", "length")),
        ({"choices": [{"message": {"content": None, "tool_calls": []}}]}, (None, None)),
        ({"choices": []}, None),
        ({"choices": ["hi"]}, None),
        ({"text": "hi"}, None),
        ([1, 2], None),
    ],
)
def test_the_text_of_answers_in_openais_form(body: Any, fields: tuple[Any, Any] | None) -> None:
    with Endpoint(Reply(body=body)) as endpoint:
        (row,) = asked(endpoint, {})
    assert row["http_response"] == body
    if fields is None:
        assert "generated_text" not in row
    else:
        assert (row["generated_text"], row["finish_reason"]) == fields
    if isinstance(body, dict):
        assert body.items() <= row.items()


@pytest.mark.parametrize("raw", [b"plain words", b"", b"{half", b"\xff\xfe"])
def test_an_answer_need_not_be_json(raw: bytes) -> None:
    with Endpoint(Reply(body=raw)) as endpoint:
        (row,) = asked(endpoint, {})
    assert row == {"http_response": raw.decode(errors="replace"), "status_code": 200}


# Many at once.


def test_requests_go_at_the_same_time_up_to_the_window() -> None:
    with Endpoint(takes_s=0.1) as endpoint:
        rows = asked(endpoint, *({"n": number} for number in range(24)), window=8)
    assert [row["echo"]["n"] for row in rows] == list(range(24))
    assert endpoint.most_in_flight == 8


def test_the_window_is_that_of_all_batches_together() -> None:
    with Endpoint(takes_s=0.1) as endpoint, stage(endpoint.url, window=5) as made, ThreadPoolExecutor(4) as threads:
        for rows in threads.map(made, [[{"n": 1}] * 6] * 4):
            assert [row["status_code"] for row in rows] == [200] * 6
    assert endpoint.most_in_flight == 5


def test_the_rate_is_kept_by_all_workers_together() -> None:
    pace = NearPace(100)
    with (
        Endpoint(together=3) as endpoint,
        stage(endpoint.url, rate_limiter=pace) as one,
        stage(endpoint.url, rate_limiter=pace) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        list(threads.map(lambda made: made([{}] * 10), [one, other]))
    assert pace.calls == len(endpoint.got) == 20
    # A rate for each worker would let them go in half the time.
    assert max(pace.due) - min(pace.due) >= 0.7 * 19 / 100
    times = sorted(got.at for got in endpoint.got)
    assert all(at >= due for at, due in zip(times, sorted(pace.due), strict=True))
    # Nobody waits for another's answer.
    assert endpoint.most_in_flight >= 3


def test_a_pace_gives_each_its_time_and_saves_none_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=50.0)
    monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pace = RateLimiter(10)
    assert [pace.wait_s() for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])
    clock.now += 0.35
    assert pace.wait_s() == pytest.approx(0.05)
    clock.now += 60
    assert [pace.wait_s() for _ in range(3)] == pytest.approx([0, 0.1, 0.2])


def test_tries_count_for_the_rate_too() -> None:
    pace, started_at = NearPace(20), time.monotonic()
    with Endpoint(Reply(503), Reply(503)) as endpoint:
        asked(endpoint, {}, rate_limiter=pace)
    assert pace.calls == len(endpoint.got) == 3
    # Without the pace, they would take a few milliseconds.
    assert time.monotonic() - started_at >= 2 / 20


# What fails.


@pytest.mark.parametrize(
    "reply", [Reply(429), Reply(503), Reply(500), Reply(408), Reply(502, b"<html>"), Reply(resets=True)]
)
def test_what_may_pass_is_tried_again(reply: Reply) -> None:
    with Endpoint(reply, reply) as endpoint:
        bad, *others = asked(endpoint, {"n": 1})
    assert (bad["status_code"], others) == (200, [])
    assert [got.body for got in endpoint.got] == [{"n": 1}] * 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_what_is_refused_is_not_tried_again(status: int) -> None:
    with Endpoint(Reply(status, {"error": "no\n  such thing"})) as endpoint:
        bad, good = asked(endpoint, {"n": 1}, {"n": 2}, window=1)
    assert bad[ERROR] == f'{endpoint.url} answered {status} (one attempt): {{"error": "no\\n such thing"}}'
    assert bad["n"] == 1
    assert good["status_code"] == 200
    assert len(endpoint.got) == 2


def test_tries_have_an_end() -> None:
    with Endpoint(*[Reply(503, b"too\nbusy")] * 4) as endpoint:
        (row,) = asked(endpoint, {}, retries=3)
    assert row[ERROR] == f"{endpoint.url} answered 503 (4 attempts): too busy"
    assert len(endpoint.got) == 4


def test_no_retries_is_one_try() -> None:
    with Endpoint(Reply(503)) as endpoint:
        (row,) = asked(endpoint, {}, retries=0)
    assert "(one attempt)" in row[ERROR]


def test_a_long_answer_is_told_in_part() -> None:
    with Endpoint(Reply(400, b"x" * 10_000)) as endpoint:
        (row,) = asked(endpoint, {})
    assert len(row[ERROR]) < 700


def test_a_failure_may_be_a_result() -> None:
    with Endpoint(Reply(404, {"error": "none"}), *[Reply(503, b"busy")] * 2) as endpoint:
        rows = asked(endpoint, {}, {}, window=1, retries=1, raise_for_status=False)
    assert rows == [
        {"error": "none", "http_response": {"error": "none"}, "status_code": 404},
        {"http_response": "busy", "status_code": 503},
    ]


def test_an_endpoint_that_is_not_there() -> None:
    url = closed_port()
    with stage(url, retries=2) as made:
        (row,) = made([{"n": 1}])
    assert row[ERROR].startswith(f"{url} cannot be reached (3 attempts): ")
    assert row["n"] == 1


def test_an_endpoint_that_does_not_answer_in_time() -> None:
    with Endpoint(takes_s=0.5) as endpoint:
        (row,) = asked(endpoint, {}, retries=1, timeout_s=0.05)
    assert f"{endpoint.url} cannot be reached (2 attempts): " in row[ERROR]


# How long it waits.


def test_retry_after_is_obeyed() -> None:
    with Endpoint(Reply(429, headers={"Retry-After": "0.2"})) as endpoint:
        asked(endpoint, {})
    first, second = endpoint.got
    assert second.at - first.at >= 0.2


def test_retry_after_may_be_a_date() -> None:
    at = datetime.now(UTC) + timedelta(seconds=60)
    assert 58 < wait_s(WAIT_S, 1, format_datetime(at, usegmt=True)) <= 60
    assert wait_s(WAIT_S, 1, format_datetime(at - timedelta(hours=1), usegmt=True)) <= WAIT_S


@pytest.mark.parametrize("text", [None, "", "soon", "-5", "inf", "nan", "1e999", "Wed, 99 Foo 2000"])
def test_a_retry_after_that_says_nothing(text: str | None) -> None:
    seconds = wait_s(WAIT_S, 1, text)
    assert math.isfinite(seconds)
    assert WAIT_S / 2 <= seconds <= WAIT_S


def test_waits_grow_to_a_limit_and_differ() -> None:
    for tries, most in [(1, 1), (2, 2), (4, 8), (30, 60)]:
        waits = {wait_s(1.0, tries, None) for _ in range(50)}
        assert len(waits) > 1
        assert most / 2 <= min(waits) <= max(waits) <= most


def test_errors_show_no_secret() -> None:
    with Endpoint(Reply(400, {"error": "bad"})) as endpoint:
        (row,) = asked(endpoint, {}, headers={"Authorization": "Bearer secret"})
    assert "secret" not in json.dumps(row)
