"""Replicas without an engine, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp

from rayllm.core.sockets import socket_folder
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.replica.drain import DrainGate
from rayllm.serving.replica.middleware import RouterGate, SlotGate
from rayllm.serving.replica.slots import Slots
from rayllm.serving.wire.handover.channel import Channel, Kind, Message
from rayllm.serving.wire.handover.receiver import Receiver
from rayllm.serving.wire.relay.reply import RelayedReplyMiddleware
from tests.fakes.clock import until

KEY = "secret"
NOWHERE = "http://127.0.0.1:9"


class Count:
    """Ray Serve's count of a replica's requests."""

    def __init__(self, capacity: int = 10) -> None:
        self.capacity = capacity
        self.held: set[str] = set()

    def add(self) -> str:
        self.held.add(token := uuid.uuid4().hex)
        return token

    def remove(self, token: str) -> None:
        self.held.remove(token)


class AdapterPool:
    """The adapters of a replica: all, unless some are named."""

    def __init__(self, *there: str, has_all: bool = False) -> None:
        self._there, self._has_all = there, has_all
        self.asked: list[str] = []

    async def missing(self, names: list[str]) -> list[str]:
        self.asked += names
        return [] if self._has_all else [name for name in names if name not in self._there]


class Replica:
    """A replica as in service, from its sockets to its application.

    Args:
        app: answers instead of an engine.
        adapters: the adapters that it has.
        capacity: requests at once.
        has_frames: whether its streams come in frames, as those of all but old versions do.
    """

    def __init__(
        self, app: ASGIApp, adapters: AdapterPool | None = None, capacity: int = 10, has_frames: bool = True
    ) -> None:
        self.count = Count(capacity)
        self.address = NOWHERE
        self.has_died: Callable[[], bool] = lambda: False
        slots = Slots(self.count)  # type: ignore[arg-type]
        self.gate = DrainGate(SlotGate(app, slots), lambda: self.has_died())
        self.receiver = Receiver(self.gate)
        slots.on_slot_freed = self.receiver.notify_slot_free
        relayed = RelayedReplyMiddleware(self.gate) if has_frames else self.gate
        pool: Any = adapters or AdapterPool(has_all=True)
        self._server = uvicorn.Server(
            uvicorn.Config(RouterGate(relayed, KEY, pool, {}), port=0, log_level="error", lifespan="off")
        )

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        self.receiver.start()
        serving = asyncio.create_task(self._server.serve())
        await until(lambda: self._server.started)
        self.address = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.receiver.close()
            self._server.should_exit = self._server.force_exit = True
            await serving

    def drain(self) -> None:
        """Take no more requests."""
        self.gate.is_draining = True
        self.receiver.drain()

    def vanish(self) -> None:
        """Close the port and all connections to it, as if the node were gone."""
        for listening in self._server.servers:
            listening.close()
        for connection in self._server.server_state.connections:
            connection.transport.abort()

    def replica_update(self, replica_id: str, node: str = "here") -> ReplicaUpdate:
        """What Ray Serve reports of it."""
        metadata = {"address": self.address, "key": KEY, "socket": str(self.receiver.path), "node_id": node}
        return ReplicaUpdate(replica_id, self.count.capacity, metadata, {})


class MessagingReplica:
    """A replica that handles the messages of one router as scripted.

    Args:
        receive: called with each message, and with this replica.
    """

    def __init__(self, receive: Callable[[MessagingReplica, Message], None]) -> None:
        self._handle = receive
        self.path = socket_folder() / f"{uuid.uuid4().hex}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel: Channel | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self._socket.listen()
        accepting = asyncio.create_task(self._accept())
        try:
            yield self
        finally:
            await accepting
            self.die()

    def begin(self, message: Message, reply: bytes, head: dict[str, Any]) -> None:
        """Announce a reply, and write to the client's connection."""
        assert self._channel
        self._channel.send(Message(Kind.STARTED, message.number, head))
        with socket.socket(fileno=message.files[0]) as client:
            client.send(reply)
        for journal in message.files[1:]:
            os.close(journal)

    def die(self) -> None:
        """Leave everything as the kernel does after `kill -9`."""
        self._socket.close()
        if self._channel:
            self._channel.close()

    def replica_update(self, replica_id: str, node: str = "here") -> ReplicaUpdate:
        """What Ray Serve reports of it."""
        metadata = {"address": NOWHERE, "key": KEY, "socket": str(self.path), "node_id": node}
        return ReplicaUpdate(replica_id, 10, metadata, {})

    async def _accept(self) -> None:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        self._channel = Channel(accepted, lambda message: self._handle(self, message), lambda: None)


class DyingReplica(MessagingReplica):
    """A replica that announces its reply, writes some bytes of it, and dies as by `kill -9`.

    Args:
        written: how many bytes it writes.
        is_stream: whether it announces a stream.
    """

    REPLY = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"from": 0}\n'

    def __init__(self, written: int, is_stream: bool = False) -> None:
        def answer(replica: MessagingReplica, message: Message) -> None:
            head = {} if is_stream else {"size": len(self.REPLY)}
            replica.begin(message, self.REPLY[:written], head)
            replica.die()

        super().__init__(answer)
