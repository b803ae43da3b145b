"""An exchange in the state BEGUN: the client has the beginning of a reply."""

from __future__ import annotations

import asyncio
import gc

import httpx
import pytest

from tests.fakes.answers import Answer, waiting
from tests.fakes.clock import until
from tests.fakes.replica import DyingReplica
from tests.fakes.router import LANES, served, service


@LANES
async def test_a_stream_comes_through_chunk_by_chunk(lane: str) -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n")
    async with served(lane, answer) as router:
        reply = await router.ask(stream=True)
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.content == b"".join(answer.chunks)


@LANES
async def test_a_client_that_leaves_a_stream_ends_the_stream_in_the_replica(
    lane: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = Answer(b"data: 1\n\n", b"never sent", pause_after=1)
    async with served(lane, answer) as router:
        async with router.stream() as reply:
            assert await anext(reply.aiter_raw()) == b"data: 1\n\n"
        await answer.left.wait()
        await until(lambda: not router.replica.count.held)
        await until(lambda: router.records)
    gc.collect()
    assert "never retrieved" not in caplog.text


@LANES
async def test_a_stream_that_its_replica_breaks_off_ends_with_an_error_as_an_event(lane: str) -> None:
    async with served(lane, Answer(b"data: 1\n\n", b"data: 2\n\n", b"x", break_after=2)) as router:
        reply = await router.ask(stream=True)
    assert reply.status_code == 200
    *good, last, end = reply.text.split("\n\n")
    assert good[:2] == ["data: 1", "data: 2"]
    assert last.startswith('data: {"error"')
    assert '"type": "server_error"' in last
    assert end == ""


async def test_a_reply_that_was_sent_in_part_is_cut() -> None:
    async with DyingReplica(written=20).listening() as dying, service("handover", {"m": [dying]}) as router:
        with pytest.raises(httpx.RemoteProtocolError):
            await router.ask()


async def test_a_model_that_is_removed_finishes_its_replies() -> None:
    rest = asyncio.Event()
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", waits_for=rest)
    async with served("handover", answer) as router, router.stream() as reply:
        chunks = reply.aiter_raw()
        assert await anext(chunks) == b"data: 1\n\n"
        router.set_replicas("m")
        rest.set()
        assert await anext(chunks) == b"data: 2\n\n"


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_router_that_stops_writes_nothing_into_a_reply_that_a_replica_finishes(has_begun: bool) -> None:
    rest, asked = asyncio.Event(), asyncio.Event()
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", waits_for=rest)
    async with served("handover", answer if has_begun else waiting(rest, answer, asked)) as router:
        asking = router.asking()
        if has_begun:
            await until(lambda: [record for record in router.begun if record.first_byte_at])
        else:
            await asked.wait()
        router.replica_sets["m"].close()
        # The router's own part of the request ends.
        await until(lambda: router.records)
        rest.set()
        reply = await asking
        assert (reply.status_code, reply.text) == (200, "data: 1\n\ndata: 2\n\n")
