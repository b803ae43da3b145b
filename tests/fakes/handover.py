"""Handovers of clients' connections: a router's server, a replica's receiver, and routers that die."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from rayllm.config import RouterConfig
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.wire.connection import CONNECTION, Connection
from rayllm.serving.wire.handover.channel import Channel, Kind, Message
from rayllm.serving.wire.handover.receiver import Receiver
from rayllm.serving.wire.handover.sender import End, Handover, Sender
from rayllm.serving.wire.listener.listener import LocalListener
from tests.fakes.answers import head
from tests.fakes.clients import Clients
from tests.fakes.clock import settle, until

Answer = Callable[[Any, Any], Awaitable[None]]


class Application:
    """Handles each request as a test scripts it, and keeps what it was asked.

    Attributes:
        answer: how it answers.
        stats: what its engine did.
        seen: scopes and bodies of the requests.
        gone: set once it has noticed that a client has left.
    """

    def __init__(self) -> None:
        self.answer: Answer = plain(200, b"hello")
        self.stats: RequestStats | None = None
        self.seen: list[tuple[dict[str, Any], bytes]] = []
        self.gone = asyncio.Event()
        self._asked = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.seen.append((scope, message["body"]))
        self._asked.set()
        if source := StatsSource.in_scope(scope):
            source.read = lambda: self.stats

        async def listen() -> None:
            assert (await receive())["type"] == "http.disconnect"
            self.gone.set()

        listening = asyncio.create_task(listen())
        try:
            await self.answer(receive, send)
        finally:
            listening.cancel()

    async def asked(self) -> None:
        """Wait for the first request."""
        await self._asked.wait()


def plain(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    """A reply in one piece."""

    async def answer(receive: Any, send: Any) -> None:
        given = [(b"content-type", b"text/plain"), (b"server", b"secret"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": body})

    return answer


def stream(*chunks: bytes, until: asyncio.Event | None = None) -> Answer:
    """A stream that ends after an event."""

    async def answer(receive: Any, send: Any) -> None:
        await send(head())
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if until:
            await until.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer


def later(event: asyncio.Event, answer: Answer) -> Answer:
    """A reply after an event."""

    async def wait_and_answer(receive: Any, send: Any) -> None:
        await event.wait()
        await answer(receive, send)

    return wait_and_answer


async def never(receive: Any, send: Any) -> None:
    """No reply."""
    await asyncio.Event().wait()


class Flood:
    """A reply of a hundred megabytes, more than any kernel holds for a client that does not read.

    Attributes:
        blocked: set once the client's connection takes no more.
        ended: set once all is sent, or the client has left.
    """

    def __init__(self, gone: asyncio.Event) -> None:
        self.blocked, self.ended = asyncio.Event(), asyncio.Event()
        self._gone = gone

    async def __call__(self, receive: Any, send: Any) -> None:
        await send(head())
        for _ in range(1000):
            message = {"type": "http.response.body", "body": b"x" * 100_000, "more_body": True}
            sending = asyncio.ensure_future(send(message))
            for _ in range(100):
                await asyncio.sleep(0)
                if sending.done():
                    break
            else:
                self.blocked.set()
            await sending
            if self._gone.is_set():
                break
        self.ended.set()

    async def stopped(self) -> None:
        """Wait until the reply goes on no more, complete or not."""
        await until(lambda: self.blocked.is_set() or self.ended.is_set())


class Router:
    """Hands each request over, and keeps how that ended."""

    def __init__(self, path: Path) -> None:
        self.leaving = self.rooms = 0
        self.send_timeout_s = 60.0
        self.sender = Sender(str(path), self.room, self.leave)
        self.handovers: list[Handover] = []
        self.outcomes: list[End] = []
        self.stats: list[RequestStats | None] = []
        self.refusals: list[tuple[int, dict[str, str], bytes]] = []

    def room(self) -> None:
        self.rooms += 1

    def leave(self) -> None:
        self.leaving += 1

    async def handover(self) -> Handover:
        """The first handover, once it is made."""
        await until(lambda: self.handovers)
        return self.handovers[0]

    async def ended(self, *outcomes: End) -> None:
        """Wait until all handovers have ended, and check how. A client may have a reply before the router hears so."""
        await until(lambda: len(self.outcomes) == len(outcomes))
        assert self.outcomes == list(outcomes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        connection: Connection = scope["extensions"][CONNECTION]
        assert connection.can_be_handed_over
        reply_headers, keeps_alive = connection.reply_headers, connection.keeps_alive
        message_head = request_head(scope["path"], reply_headers, keeps_alive, self.send_timeout_s)
        handover = self.sender.hand_over(connection.socket, message_head, body)
        self.handovers.append(handover)
        left = asyncio.create_task(receive())
        await asyncio.wait((left, handover.end), return_when=asyncio.FIRST_COMPLETED)
        if not handover.end.done():
            await self.sender.abort(handover)
            return
        left.cancel()
        await self._conclude(connection, handover, receive, send)

    async def _conclude(self, connection: Connection, handover: Handover, receive: Any, send: Any) -> None:
        outcome = handover.end.result()
        self.outcomes.append(outcome)
        self.stats.append(handover.stats)
        if outcome is End.ANSWERED:
            connection.answered()
        elif outcome is End.REFUSED:
            assert handover.refusal
            refusal = handover.refusal
            self.refusals.append((refusal.head["status"], refusal.head["headers"], refusal.body))
            await plain(500, b"refused")(receive, send)
        elif outcome is End.BROKEN:
            connection.break_off(b"data: broken\n\n")
        elif outcome is End.DETACHED:
            connection.break_off(b"")
        else:
            await plain(500, b"lost")(receive, send)


def request_head(
    path: str, reply_headers: dict[str, str], keeps_alive: bool = True, send_timeout_s: float = 60
) -> dict[str, Any]:
    """The head of the message that hands a request over."""
    return {
        "method": "POST",
        "path": path,
        "headers": {"content-type": "application/json"},
        "reply_headers": reply_headers,
        "keeps_alive": keeps_alive,
        "send_timeout_s": send_timeout_s,
    }


class HandoverPair:
    """A router's server, a replica with a scripted application, and clients."""

    def __init__(self, port: int, router: Router, app: Application, receiver: Receiver) -> None:
        self.router, self.app, self.receiver = router, app, receiver
        self.clients = Clients()
        self._port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's connection to the router."""
        return await self.clients.connect(self._port)

    async def ask(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's connection, on which it has sent a request."""
        reader, writer = await self.connect()
        writer.write(sent or request())
        return reader, writer


@asynccontextmanager
async def handover_pair(replica: Path | None = None) -> AsyncIterator[HandoverPair]:
    """A router in front of a replica on the same node.

    Args:
        replica: socket of another replica, in place of the scripted one.
    """
    app = Application()
    receiver = Receiver(app)
    receiver.start()
    router = Router(replica or receiver.path)
    listener = LocalListener("127.0.0.1", 0)
    front = HttpServer(router, listener, "", RouterConfig())
    await front.start()
    pair = HandoverPair(listener.port, router, app, receiver)
    try:
        yield pair
    finally:
        await pair.clients.close()
        router.sender.close()
        receiver.close()
        await front.stop(5)


class MortalRouter:
    """A router that hands one request over, and dies as by `kill -9`."""

    def __init__(self, channel: Channel, client: socket.socket) -> None:
        self._channel, self._client = channel, client
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    @classmethod
    @asynccontextmanager
    async def handing_over(cls, replica: Path) -> AsyncIterator[Self]:
        """A router that has handed a request over, with the client's end of the connection."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.connect(str(replica))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            client, _ = listening.accept()
        client.setblocking(False)
        channel = Channel(control, lambda message: None, lambda: None)
        channel.send(Message(Kind.REQUEST, 1, request_head("/v1/x", {}), b"{}", (client.fileno(),)))
        router = cls(channel, client)
        router.reader, router.writer = reader, writer
        try:
            yield router
        finally:
            router._die()
            writer.close()

    async def die(self) -> None:
        """End as the kernel does after `kill -9`, and let the replica notice."""
        self._die()
        await settle()

    def _die(self) -> None:
        self._channel.close()
        self._client.close()


def request(body: bytes = b"{}", *headers: str, version: str = "1.1") -> bytes:
    """A client's request."""
    lines = [f"POST /v1/x HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The next whole reply on a client's connection."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    if "content-length" in headers:
        return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return int(lines[0].split()[1]), headers, body
