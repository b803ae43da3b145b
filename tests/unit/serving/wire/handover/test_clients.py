"""Clients that leave, and clients that do not read, while a replica answers on their connections."""

from __future__ import annotations

from rayllm.serving.wire.handover.sender import End
from tests.fakes.clock import pass_time
from tests.fakes.handover import (
    Flood,
    HandoverPair,
    never,
    plain,
    reply,
    request,
    stream,
)


async def test_a_client_that_leaves_ends_its_stream(pair: HandoverPair) -> None:
    pair.app.answer = stream(b"data: 1\n\n", until=pair.app.gone)
    reader, writer = await pair.ask()
    await reader.readuntil(b"data: 1\n\n\r\n")
    writer.close()
    await pair.app.gone.wait()


async def test_a_client_that_leaves_before_the_reply_ends_the_request(pair: HandoverPair) -> None:
    pair.app.answer = never
    _, writer = await pair.ask()
    await pair.app.asked()
    writer.close()
    await pair.app.gone.wait()


async def test_a_client_that_wants_no_more_has_its_connection_closed(pair: HandoverPair) -> None:
    for chunked in (False, True):
        pair.app.answer = stream(b"data: 1\n\n") if chunked else plain(200, b"hello")
        reader, _ = await pair.ask(request(b"{}", "connection: close"))
        status, headers, _ = await reply(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""


async def test_a_slow_reader_holds_up_nobody_else(pair: HandoverPair) -> None:
    pair.app.answer = flood = Flood(pair.app.gone)
    await pair.ask()
    await flood.stopped()
    # What nobody reads is not made.
    assert not flood.ended.is_set()
    pair.app.answer = plain(200, b"hello")
    reader, _ = await pair.ask()
    assert (await reply(reader))[2] == b"hello"
    assert not flood.ended.is_set()


async def test_a_client_that_reads_nothing_is_disconnected(pair: HandoverPair) -> None:
    pair.app.answer = flood = Flood(pair.app.gone)
    await pair.ask()
    await flood.blocked.wait()
    pass_time(pair.router.send_timeout_s)
    await pair.app.gone.wait()
    await pair.router.ended(End.BROKEN)


async def test_stopping_a_replica_ends_a_write_that_waits_for_the_client(pair: HandoverPair) -> None:
    pair.app.answer = flood = Flood(pair.app.gone)
    await pair.ask()
    await flood.blocked.wait()
    await pair.router.sender.abort(await pair.router.handover())
    await flood.ended.wait()
    assert pair.app.gone.is_set()
