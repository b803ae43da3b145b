"""What a router gets beside a reply that it relays."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from rayllm.core.headers import FRAMES, JOURNAL, STATS
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.core.token_log import TokenGroup, TokenLog
from rayllm.serving.wire.journal import JournalFile
from rayllm.serving.wire.relay.frames import Frame, FrameReader, encode
from rayllm.serving.wire.relay.reply import RelayedReplyMiddleware

FOUND = RequestStats(3, 1, 5)
EVENTS = "text/event-stream; charset=utf-8"


def application(content_type: str, *chunks: bytes, stats: RequestStats | None = FOUND) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        source = StatsSource.in_scope(scope)
        assert source
        source.read = lambda: stats
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for index, chunk in enumerate(chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": index < len(chunks) - 1})

    return app


async def ask(app: Any, body: bytes = b"", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(RelayedReplyMiddleware(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
        return await client.post("/", content=body, headers={FRAMES: "1", **headers})


def frames(reply: httpx.Response) -> list[tuple[Frame, bytes]]:
    assert reply.headers[FRAMES] == "1"
    return list(FrameReader().feed(reply.content))


async def test_a_whole_reply_has_the_stats_in_a_header() -> None:
    reply = await ask(application("application/json", b"{}"))
    assert (reply.content, RequestStats.from_json(json.loads(reply.headers[STATS]))) == (b"{}", FOUND)
    assert FRAMES not in reply.headers


@pytest.mark.parametrize("chunks", [(b"data: a\n\n", b"data: b\n\n", b""), (b"data: a\n\ndata: b\n\n",)])
async def test_a_stream_has_them_in_a_frame(chunks: tuple[bytes, ...]) -> None:
    *events, (kind, stats), end = frames(await ask(application(EVENTS, *chunks)))
    assert b"".join(content for kind, content in events if kind is Frame.EVENTS) == b"data: a\n\ndata: b\n\n"
    assert (kind, RequestStats.from_json(json.loads(stats)), end) == (Frame.STATS, FOUND, (Frame.END, b""))


async def test_a_stream_has_them_in_between_lest_the_router_does_not_see_the_end() -> None:
    kinds = [kind for kind, _ in frames(await ask(application(EVENTS, *[b"x"] * 20)))]
    assert kinds.count(Frame.STATS) == 4
    assert kinds[:3] == [Frame.EVENTS, Frame.STATS, Frame.EVENTS]


async def test_a_router_of_an_older_version_gets_events_only() -> None:
    reply = await ask(application(EVENTS, b"data: a\n\n", b"data: b\n\n"), **{FRAMES: ""})
    assert (reply.content, FRAMES in reply.headers) == (b"data: a\n\ndata: b\n\n", False)


async def test_a_request_that_reached_no_engine_has_none() -> None:
    reply = await ask(application("application/json", b"x", b"y", stats=None))
    assert (reply.content, STATS in reply.headers) == (b"xy", False)
    streamed = await ask(application(EVENTS, b"x", b"y", stats=None))
    assert frames(streamed) == [(Frame.EVENTS, b"x"), (Frame.EVENTS, b"y"), (Frame.END, b"")]


async def test_other_replies_in_parts_stay_as_they_are() -> None:
    assert (await ask(application("audio/wav", b"a", b"b"))).content == b"ab"


async def test_a_journal_is_told_the_tokens_of_each_event() -> None:
    earlier = JournalFile.create().open()
    earlier.open(is_continuable=True)
    earlier.append(TokenGroup((1, 2)))
    tokens = earlier.token_bytes()
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        journal = TokenLog.in_scope(scope)
        assert journal
        seen["earlier"], seen["body"] = journal.earlier, (await receive())["body"]
        seen["of"] = (journal.seed, journal.created)
        journal.open(is_continuable=True)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for group in (TokenGroup((1, 2)), TokenGroup((3,))):
            journal.append(group)
            await send({"type": "http.response.body", "body": b"%d" % group.token_ids[-1], "more_body": True})
        journal.open(is_continuable=False)
        await send({"type": "http.response.body", "body": b"!"})

    description = {"seed": "s", "created": 1.5, "token_bytes": len(tokens)}
    reply = await ask(app, tokens + b"the body", **{JOURNAL: json.dumps(description)})
    assert seen == {"earlier": [TokenGroup((1, 2))], "body": b"the body", "of": ("s", 1.5)}
    (_, first), (kind, added), *rest = frames(reply)
    assert first == b"2"
    assert kind is Frame.TOKENS
    earlier.add_token_bytes(added)
    assert JournalFile.create(earlier.token_bytes()).open().earlier == [TokenGroup((1, 2)), TokenGroup((3,))]
    kinds = [Frame.EVENTS, Frame.NOT_CONTINUABLE, Frame.EVENTS, Frame.END]
    assert [kind for kind, _ in rest] == kinds


def test_frames_may_be_cut_anywhere() -> None:
    whole = [(Frame.TOKENS, b"abc"), (Frame.EVENTS, bytes(300)), (Frame.END, b"")]
    data = b"".join(encode(*frame) for frame in whole)
    for cut in range(len(data) + 1):
        reader = FrameReader()
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == whole
    reader = FrameReader()
    assert [frame for index in range(len(data)) for frame in reader.feed(data[index : index + 1])] == whole
