"""The record of a request: what the client got, what the replica did, and what is paid for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse

from rayllm.core.endpoints import CHAT
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import RequestError
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.serving.router.model_registry import ModelRegistry
from rayllm.serving.wire.record import CLIENT_LEFT
from tests.fakes.answers import Answer, reading, waiting
from tests.fakes.clock import pass_time, until
from tests.fakes.replica import Replica
from tests.fakes.router import LANES, RouterApplication, served, service

STATS = RequestStats(3, 1, 5, 0.5, 0.25, 2.0, "stop")


async def whole(scope: Any, receive: Any, send: Any) -> None:
    """Answers as vLLM does where no stream is asked for."""
    source = StatsSource.in_scope(scope)
    assert source
    source.read = lambda: STATS
    await JSONResponse({"x": 1})(scope, receive, send)


@LANES
@pytest.mark.parametrize("stream", [False, True])
async def test_the_record_of_an_answered_request(lane: str, stream: bool) -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", stats=STATS)
    async with served(lane, answer if stream else whole) as router:
        reply = await router.ask("m:a")
        assert reply.content == (b"data: 1\n\ndata: 2\n\n" if stream else b'{"x":1}')
        assert "x-rayllm-stats" not in reply.headers
        record = await router.record()
    assert (record.endpoint, record.model_id, record.adapter) == (CHAT, "m", "a")
    assert (record.status, record.replica, record.attempts, record.stats) == (200, "m-0", 1, STATS)
    assert record.sent_at is not None
    assert record.first_byte_at is not None
    assert record.started_at <= record.sent_at <= record.first_byte_at <= record.ended_at


@LANES
async def test_the_record_of_a_request_that_was_lost_with_a_replica(lane: str) -> None:
    asked, died = asyncio.Event(), asyncio.Event()
    dies = JSONResponse({"error": {"message": "EngineDeadError"}}, 500)
    async with (
        Replica(waiting(died, reading(dies), asked)).listening() as a,
        Replica(whole).listening() as b,
        service(lane, {"m": [a]}) as router,
    ):
        a.has_died = died.is_set
        asking = router.asking()
        await asked.wait()
        router.set_replicas("m", a, b)
        died.set()
        assert (await asking).status_code == 200
        record = await router.record()
    assert (record.status, record.attempts, record.replica, record.stats) == (200, 2, "m-1", STATS)


@LANES
async def test_the_record_of_a_refused_request(lane: str) -> None:
    async with served(lane, Answer(b"{}")) as router:
        assert (await router.ask("none")).status_code == 404
        record = await router.record()
    assert (record.status, record.model_id, record.attempts, record.sent_at) == (404, "", 0, None)


@LANES
async def test_the_record_of_a_refusal_by_the_replica(lane: str) -> None:
    refuses = JSONResponse(error_body(RequestError("made up"), CHAT), 400)
    async with served(lane, reading(refuses)) as router:
        assert (await router.ask()).status_code == 400
        assert (await router.record()).status == 400


@LANES
async def test_the_record_of_an_error_in_place_of_the_replicas_reply(lane: str) -> None:
    fails = JSONResponse({"error": "internals"}, 503)
    async with served(lane, reading(fails)) as router:
        assert (await router.ask()).status_code == 503
        record = await router.record()
    assert (record.status, record.refusal) == (503, "overloaded")


POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "refusal"),
    [
        (POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\nz\r\n", 400, "invalid_request_error"),
        (POST + b"content-length: 3000\r\n\r\n{", 413, "request_too_large"),
        (POST + b"content-length: 300\r\n\r\n{", 408, "timeout"),
        (POST + b"content-length: 1\r\n\r\n{", 400, "invalid_request_error"),
    ],
    ids=["a wrong chunk", "too large", "too slow", "no JSON"],
)
async def test_the_record_of_a_body_that_is_refused(
    sent: bytes, status: int, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "rayllm"):
        async with service("relay", {"m": []}, max_body_bytes=2000) as router:
            reader, writer = await asyncio.open_connection(router.client.base_url.host, router.client.base_url.port)
            writer.write(sent)
            if status == 408:
                await until(lambda: router.begun)
                pass_time(router.forwarder.config.body_timeout_s)
            assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
            record = await router.record()
            writer.close()
    assert (record.status, record.refusal) == (status, refusal)
    [line] = [text for text in caplog.messages if f" POST {CHAT} " in text]
    assert f" POST {CHAT} {status} " in line


@LANES
async def test_the_record_of_a_request_that_fails_on_a_bug(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ModelRegistry, "resolve", fail)
    async with service(lane, {"m": []}) as router:
        assert (await router.ask()).status_code == 500
        record = await router.record()
    assert (record.status, record.refusal) == (500, "server_error")


async def leave(router: RouterApplication, answer: Answer) -> None:
    """Send a request, and leave once a replica has the request."""
    asking = router.asking()
    await answer.asked.wait()
    asking.cancel()


@LANES
async def test_the_record_of_a_request_whose_client_left(lane: str) -> None:
    aborted = RequestStats(3, 0, 2, finish_reason="abort")
    answer = Answer(b"never sent", pause_after=0, stats=aborted)
    async with served(lane, answer) as router:
        await leave(router, answer)
        record = await router.record()
    assert (record.status, record.first_byte_at) == (CLIENT_LEFT, None)
    # By HTTP, the router closes the connection, and hears no more: nobody knows what the reply took.
    assert (record.stats, record.tokens) == ((aborted, 5) if lane == "handover" else (None, None))


@LANES
async def test_the_record_of_a_stream_whose_client_left(lane: str) -> None:
    answer = Answer(b"data: 1\n\n", b"x", pause_after=1)
    async with served(lane, answer) as router:
        async with router.stream() as reply:
            assert await anext(reply.aiter_raw()) == b"data: 1\n\n"
        assert (await router.record()).status == 200


@LANES
async def test_the_log_line_of_a_request_whose_client_left(lane: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = Answer(b"never sent", pause_after=0)
    with caplog.at_level("INFO", "rayllm"):
        async with served(lane, answer) as router:
            await leave(router, answer)
            await router.record()
            await until(lambda: any(f" POST {CHAT} {CLIENT_LEFT} " in line for line in caplog.messages))


@LANES
async def test_a_reply_that_takes_too_long_is_not_free(lane: str) -> None:
    answer = Answer(b"never sent", pause_after=0, stats=RequestStats(3, 0, 2, finish_reason="abort"))
    async with served(lane, answer) as router:
        asking = router.asking()
        await answer.asked.wait()
        pass_time(600)
        assert (await asking).status_code == 408
        record = await router.record()
    assert record.tokens == (5 if lane == "handover" else None)


@LANES
async def test_a_request_that_no_replica_has_worked_on_is_free(lane: str) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        status = json.loads((await receive())["body"])["status"]
        await JSONResponse({"error": {"message": "no", "code": None}}, status)(scope, receive, send)

    async with served(lane, refuses) as router:
        for model, status in (("m", 400), ("m", 503), ("none", 404)):
            assert (await router.ask(model, status=status)).status_code == status
            await until(lambda: router.records)
            assert router.records.pop().tokens == 0


@LANES
async def test_a_relayed_stream_that_its_client_leaves_is_paid(lane: str) -> None:
    generated = RequestStats(3, 0, 20, finish_reason="abort")
    answer = Answer(*[b"data: 1\n\n"] * 20, b"never sent", pause_after=20, stats=generated)
    async with served(lane, answer) as router:
        # Of another origin: the router adds headers to the reply.
        async with router.stream(headers={"origin": "https://example.com"}) as reply:
            await anext(reply.aiter_bytes())
        record = await router.record()
    assert (record.stats, record.tokens) == (generated, 23)
