"""ASGI middleware of a replica for replies that a router relays: stats, and journals of streams."""

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.request_stats import StatsSource
from rayllm.serving.wire.journal import JournalFile, StreamJournal
from rayllm.serving.wire.relay.frames import Frame, encode

# A stream has stats with its first part, with each of so many more, and with the last.
_PARTS = 8


class RelayedReplyMiddleware:
    """Adds the stats of a request to its reply: to a complete one in a header, to a stream of events in a frame.

    Where the router keeps a journal, a stream has the tokens that its events come from as well, and continues from the
    tokens that come before the request's body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        journal = None
        if scope["type"] == "http" and (description := header(scope, headers.JOURNAL)):
            journal, receive = await _open_journal(json.loads(description), receive)
            journal.add_to(scope)
        reply = _Reply(send, journal, has_frames=bool(header(scope, headers.FRAMES)))
        reply.source.add_to(scope)
        try:
            await self._app(scope, receive, reply)
        finally:
            if journal:
                journal.close()


class _Reply:
    """An ASGI `send` that adds to a reply what only the router sees.

    Args:
        has_frames: whether the router reads streams in frames; one of an older version does not.
    """

    def __init__(self, send: Send, journal: StreamJournal | None, has_frames: bool) -> None:
        self.source = StatsSource()
        self._send = send
        self._journal = journal
        self._start: Message | None = None
        self._has_frames = has_frames
        self._is_stream = False
        self._position = len(journal.token_bytes()) if journal else 0
        self._was_continuable = False
        self._parts = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Held until the first part of the body, to see whether there is more.
            self._start, self._is_stream = message, _is_event_stream(message)
            return
        if self._journal and self._journal.engine_is_lost and self._is_stream and self._start is None:
            # The router has another replica go on; what the application says of it is not for the client.
            raise ConnectionAbortedError("the engine died")
        is_last = not message.get("more_body")
        # Also in between: the router may not see the end.
        stats = self.source.stats if is_last or (self._is_stream and self._parts % _PARTS == 0) else None
        self._parts += 1
        text = json.dumps(stats.as_json()).encode() if stats else b""
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(_with_headers(start, text.decode(), self._is_stream, self._has_frames))
        if self._is_stream and self._has_frames:
            message = {**message, "body": b"".join(self._frames(message.get("body", b""), text, is_last))}
        await self._send(message)

    def _frames(self, events: bytes, stats: bytes, is_last: bool) -> list[bytes]:
        frames = self._journal_frames(self._journal) if self._journal else []
        if events:
            frames.append(encode(Frame.EVENTS, events))
        if stats:
            frames.append(encode(Frame.STATS, stats))
        if is_last:
            frames.append(encode(Frame.END))
        return frames

    def _journal_frames(self, journal: StreamJournal) -> list[bytes]:
        if not journal.is_continuable:
            had_been, self._was_continuable = self._was_continuable, False
            return [encode(Frame.NOT_CONTINUABLE)] if had_been else []
        self._was_continuable = True
        tokens = journal.token_bytes(self._position)
        self._position += len(tokens)
        return [encode(Frame.TOKENS, tokens)] if tokens else []


def _with_headers(start: Message, stats: str, is_stream: bool, has_frames: bool) -> Message:
    if is_stream:
        added = [(headers.FRAMES.encode(), b"1")] if has_frames else []
    else:
        added = [(headers.STATS.encode(), stats.encode())] if stats else []
    return {**start, "headers": [*start.get("headers", ()), *added]}


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


async def _open_journal(description: dict[str, Any], receive: Receive) -> tuple[StreamJournal, Receive]:
    """The journal that the router describes, with the tokens that come before the request's body; and the body."""
    size = description.pop("token_bytes")
    received, is_whole = b"", False
    while len(received) < size and not is_whole:
        message = await receive()
        received += message.get("body", b"")
        is_whole = not message.get("more_body")
    rest: list[Message] = []
    if received:
        rest.append({"type": "http.request", "body": received[size:], "more_body": not is_whole})

    async def receive_rest() -> Message:
        return rest.pop() if rest else await receive()

    file = JournalFile.create(received[:size])
    return StreamJournal(file.file, **description), receive_rest
