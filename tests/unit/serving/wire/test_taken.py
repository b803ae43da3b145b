"""An exchange in the state TAKEN: a replica has the request, and the client nothing of a reply."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from rayllm.core import headers
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import RequestError
from tests.fakes.answers import Answer, reading, waiting
from tests.fakes.clock import pass_time, until
from tests.fakes.replica import DyingReplica, Replica
from tests.fakes.router import LANES, served, service


@LANES
async def test_a_replica_that_other_routers_have_filled_is_left_for_another(lane: str) -> None:
    async with (
        Replica(Answer(b'{"from": 0}')).listening() as a,
        Replica(Answer(b'{"from": 1}')).listening() as b,
        service(lane, {"m": [a, b]}) as router,
    ):
        a.count.capacity = 0
        replies = await asyncio.gather(*(router.ask() for _ in range(8)))
        assert [reply.json() for reply in replies] == [{"from": 1}] * 8


@LANES
async def test_a_replica_that_leaves_is_not_asked_again_and_loses_nothing(lane: str) -> None:
    async with (
        Replica(Answer(b'{"from": 0}')).listening() as a,
        Replica(Answer(b'{"from": 1}')).listening() as b,
        service(lane, {"m": [a, b]}) as router,
    ):
        a.drain()
        replies = await asyncio.gather(*(router.ask() for _ in range(20)))
        assert [reply.json() for reply in replies] == [{"from": 1}] * 20
        assert not router.replica_sets["m"].replicas["m-0"].is_open


@LANES
async def test_requests_in_an_engine_that_dies_go_to_another_replica(lane: str) -> None:
    died = asyncio.Event()
    dies = JSONResponse({"error": {"message": "EngineDeadError"}}, 500)
    async with (
        Replica(waiting(died, reading(dies))).listening() as a,
        Replica(Answer(b'{"from": 1}')).listening() as b,
        service(lane, {"m": [a]}) as router,
    ):
        a.has_died = died.is_set
        asked = [router.asking() for _ in range(8)]
        await until(lambda: len(a.count.held) == 8)
        router.set_replicas("m", a, b)
        died.set()
        assert [(await reply).json() for reply in asked] == [{"from": 1}] * 8


@pytest.mark.parametrize(("written", "answered_by"), [(0, 1), (len(DyingReplica.REPLY), 0)])
async def test_a_reply_that_was_announced_is_sent_once(written: int, answered_by: int) -> None:
    async with (
        DyingReplica(written).listening() as dying,
        Replica(Answer(b'{"from": 1}')).listening() as other,
        service("handover", {"m": [dying]}) as router,
    ):
        asking = router.asking()
        await until(lambda: not router.replica_sets["m"].replicas["m-0"].is_open)
        router.set_replicas("m", other)
        assert (await asking).json() == {"from": answered_by}
        # On the same connection.
        assert (await router.ask()).json() == {"from": 1}
        await until(lambda: [record.status for record in router.records] == [200, 200])


async def test_a_stream_that_was_announced_and_not_begun_goes_to_another_replica() -> None:
    async with (
        DyingReplica(0, is_stream=True).listening() as dying,
        Replica(Answer(b"data: 1\n\n", b"data: 2\n\n")).listening() as other,
        service("handover", {"m": [dying]}) as router,
    ):
        asking = router.asking(stream=True, n=2)
        await until(lambda: not router.replica_sets["m"].replicas["m-0"].is_open)
        router.set_replicas("m", other)
        assert (await asking).text == "data: 1\n\ndata: 2\n\n"


@LANES
async def test_a_request_that_replicas_die_of_is_refused_from_then_on(lane: str) -> None:
    async def dies_of_poison(scope: Any, receive: Any, send: Any) -> None:
        if b"poison" in (await receive())["body"]:
            # What a replica answers when its engine has died.
            await Response(None, 503, {headers.LOST: "1"})(scope, receive, send)
        else:
            await JSONResponse({})(scope, receive, send)

    async with (
        Replica(dies_of_poison).listening() as a,
        Replica(dies_of_poison).listening() as b,
        Replica(dies_of_poison).listening() as c,
        service(lane, {"m": [a, b, c]}) as router,
    ):
        for attempts in (2, 0):
            reply = await router.ask(prompt="poison")
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (500, "request_quarantined")
            assert reply.headers["x-should-retry"] == "false"
            await until(lambda: router.records)
            assert router.records.pop().attempts == attempts
        assert (await router.ask(prompt="meat")).status_code == 200


@LANES
async def test_a_replicas_refusal_says_whether_to_ask_again(lane: str) -> None:
    said = {"retry-after": "7", "x-should-retry": "false"}
    refusal = JSONResponse(error_body(RequestError("no"), "/v1/chat/completions"), 400, {**said, "x-own": "1"})
    async with served(lane, refusal) as router:
        reply = await router.ask()
        assert (reply.status_code, reply.json()["error"]["message"]) == (400, "no")
        assert {name: value for name, value in reply.headers.items() if name in (*said, "x-own")} == said


@LANES
async def test_a_replica_that_dies_before_it_answers_is_500(lane: str) -> None:
    async with served(lane, Answer(b"x", b"y", break_after=0, begins_late=True)) as router:
        reply = await router.ask()
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")


@LANES
async def test_a_replica_that_answers_500_fastest_of_all_does_not_draw_all_requests(lane: str) -> None:
    """`least_loaded` prefers a replica whose engine is gone: it never has anything in hand."""
    fails = JSONResponse({"error": {"message": "made up", "type": "server_error"}}, 500)
    async with (
        Replica(reading(fails)).listening() as a,
        Replica(Answer(b'{"from": 1}', takes_s=0.02)).listening() as b,
        service(lane, {"m": [a, b]}) as router,
    ):
        statuses = []
        for _ in range(20):
            replies = await asyncio.gather(*(router.ask() for _ in range(10)))
            statuses += [reply.status_code for reply in replies]
        assert statuses.count(500) < 40
        assert statuses[-100:].count(500) < 10


@LANES
@pytest.mark.parametrize("status", [403, 500])
async def test_a_replicas_reply_that_is_no_error_object_becomes_one(lane: str, status: int) -> None:
    async with served(lane, Answer(b"{}", status=status)) as router:
        reply = await router.ask()
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
        assert "plain text" not in reply.text


@LANES
async def test_a_client_that_leaves_before_the_first_byte_ends_the_request_in_the_replica(lane: str) -> None:
    answer = Answer(b"never sent", pause_after=0)
    async with served(lane, answer) as router:
        asking = router.asking()
        await answer.asked.wait()
        asking.cancel()
        await answer.left.wait()
        await until(lambda: not router.replica.count.held)
        [replica] = router.replica_sets["m"].replicas.values()
        await until(lambda: replica.candidate.requests == 0)


@LANES
async def test_no_answer_in_time_is_408_and_ends_the_request_in_the_replica(lane: str) -> None:
    answer = Answer(b"never sent", pause_after=0)
    async with served(lane, answer) as router:
        asking = router.asking()
        await answer.asked.wait()
        pass_time(600)
        reply = await asking
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")
        await answer.left.wait()


@LANES
async def test_a_full_replica_does_not_lift_the_requests_timeout(lane: str) -> None:
    async with served(lane, Answer(b"{}"), capacity=0, request_timeout_s=30) as router:
        asking = router.asking()
        await router.queued()
        pass_time(30)
        reply = await asking
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")


@LANES
async def test_a_reply_that_comes_after_the_timeout_never_mixes_with_the_408(lane: str) -> None:
    """The replica writes into the same connection: it is stopped before the router answers."""
    asked, late = asyncio.Event(), asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        asked.set()
        if b"slow" in body:
            # It does not notice that nobody waits any more.
            await late.wait()
        await JSONResponse({"asked": body.decode()})(scope, receive, send)

    async with served(lane, answer) as router:
        for _ in range(2):
            asked.clear()
            late.clear()
            slow = router.asking(x="slow")
            await asked.wait()
            pass_time(600)
            assert (await slow).status_code == 408
            late.set()
            reply = await router.ask(x="fast")
            assert (reply.status_code, "fast" in reply.json()["asked"]) == (200, True)
