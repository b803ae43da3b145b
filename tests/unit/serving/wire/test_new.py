"""An exchange in the state NEW: no replica has the request, which waits in the router."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse

from rayllm.core.endpoints import CHAT, MESSAGES, RESPONSES
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import RequestError
from tests.fakes.answers import Answer
from tests.fakes.clock import pass_time
from tests.fakes.replica import Replica
from tests.fakes.router import LANES, served, service, waiting_stream


@LANES
async def test_requests_beyond_a_replicas_slots_wait_and_are_all_answered(lane: str) -> None:
    answer = Answer(b"{}", takes_s=0.02)
    async with served(lane, answer, capacity=2) as router:
        replies = await asyncio.gather(*(router.ask() for _ in range(20)))
        assert [reply.status_code for reply in replies] == [200] * 20
        assert answer.most_at_once == 2
        assert router.queues["m"].waiting == 0


@LANES
async def test_a_new_replica_takes_the_requests_that_wait(lane: str) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, service(lane, {"m": []}) as router:
        asked = [router.asking() for _ in range(5)]
        await router.queued(5)
        router.set_replicas("m", replica)
        assert [(await reply).status_code for reply in asked] == [200] * 5


async def test_a_request_that_waits_while_the_routing_policy_changes_is_answered() -> None:
    async with Replica(Answer(b"{}")).listening() as replica, service("relay", {"m": []}) as router:
        asked = router.asking()
        await router.queued()
        router.replica_sets["m"].configure("session", 5)
        router.set_replicas("m", replica)
        assert (await asked).status_code == 200


async def test_a_request_waits_for_a_replica_no_longer_than_the_queues_timeout() -> None:
    async with service("relay", {"m": []}) as router:
        asking = router.asking()
        await router.queued()
        pass_time(60)
        reply = await asking
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
        assert router.queues["m"].waiting == 0


@LANES
async def test_a_request_to_a_replica_that_is_gone_is_503(lane: str) -> None:
    async with service(lane, {"m": [Replica(Answer(b"{}"))]}) as router:
        asking = router.asking()
        await router.queued()
        pass_time(60)
        reply = await asking
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")


@LANES
async def test_another_replica_takes_the_requests_of_a_replica_that_is_gone(lane: str) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as there,
        service(lane, {"m": [Replica(Answer(b"{}")), there]}) as router,
    ):
        replies = await asyncio.gather(*(router.ask() for _ in range(8)))
        assert [reply.status_code for reply in replies] == [200] * 8


@LANES
async def test_a_stream_that_waits_for_a_replica_sends_comments(lane: str) -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n")
    async with (
        Replica(answer).listening() as replica,
        service(lane, {"m": []}) as router,
        waiting_stream(router) as reply,
    ):
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        parts = reply.aiter_raw()
        assert (await anext(parts)).startswith(b": ")
        router.set_replicas("m", replica)
        events = b"".join([part async for part in parts]).split(b"\n\n")
        assert [event for event in events if event and not event.startswith(b":")] == [b"data: 1", b"data: 2"]


async def test_a_stream_that_has_waited_too_long_ends_with_an_error_as_an_event() -> None:
    async with service("relay", {"m": []}) as router:
        async with waiting_stream(router) as reply:
            pass_time(60)
            await reply.aread()
        assert reply.status_code == 200
        assert json.loads(reply.text.split("data: ")[1])["error"]["code"] == "overloaded"
        record = await router.record()
        assert (record.status, record.refusal, record.outcome) == (200, "overloaded", 503)


@LANES
@pytest.mark.parametrize(
    ("path", "begins"),
    [
        (CHAT, 'data: {"error": {"message": "made up"'),
        (MESSAGES, 'event: error\ndata: {"type": "error", "error": {"message": "made up"'),
        (RESPONSES, 'event: error\ndata: {"type": "error", "code": "invalid_request_error", "message": "made up"'),
    ],
)
async def test_a_refusal_after_a_wait_has_the_shape_of_its_api(lane: str, path: str, begins: str) -> None:

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        body = error_body(RequestError("made up", "messages"), scope["path"])
        await JSONResponse(body, 400)(scope, receive, send)

    async with Replica(refuses).listening() as replica, service(lane, {"m": []}) as router:
        async with waiting_stream(router, path) as reply:
            parts = reply.aiter_text()
            assert (await anext(parts)).startswith(": ")
            router.set_replicas("m", replica)
            text = "".join([part async for part in parts])
        [event] = [event for event in text.split("\n\n") if event and not event.startswith(":")]
        assert event.startswith(begins)
        record = await router.record()
        assert (record.status, record.outcome) == (200, 400)
