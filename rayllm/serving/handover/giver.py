"""The router's side: a request goes to a replica of this node with its client's connection."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayllm.serving.handover.wire import Channel, Kind, Message


class Outcome(Enum):
    """How a request that was handed over ended."""

    ANSWERED = "answered"
    """The client has the whole reply."""
    REFUSED = "refused"
    """Nothing was written; the replica says what to answer."""
    LOST = "lost"
    """The replica is gone, or failed, before it wrote anything."""
    BROKEN = "broken"
    """The replica is gone, or failed, in the middle of the reply."""


@dataclass
class Handed:
    """A request in a replica's hands: `started` is set with the reply's first bytes, `outcome` settled at its end."""

    number: int
    outcome: asyncio.Future[Outcome]
    started: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Message | None = None


class Giver:
    """The way to one replica.

    Args:
        path: of the replica's Unix socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._handed: dict[int, Handed] = {}
        self._channel: Channel | None = None

    def give(self, file: int, head: Mapping[str, Any], body: bytes) -> Handed:
        """Hand a request over.

        Args:
            file: descriptor of the client's connection. The replica gets a copy.
            head: `method`, `path`, `headers`, `reply_headers` and `keeps_alive`.
            body: the request's.

        Raises:
            OSError: the replica cannot be reached; nothing was sent.
        """
        handed = Handed(next(self._numbers), asyncio.get_running_loop().create_future())
        channel = self._open()
        self._handed[handed.number] = handed
        try:
            channel.tell(Message(Kind.REQUEST, handed.number, dict(head), body, (file,)))
        except OSError:
            del self._handed[handed.number]
            raise
        return handed

    def abort(self, handed: Handed) -> None:
        """The client left: the replica may stop."""
        if self._handed.pop(handed.number, None) and self._channel is not None and self._channel.is_open:
            self._channel.tell(Message(Kind.ABORT, handed.number))

    def close(self) -> None:
        """Leave the replica; what it has not answered breaks off."""
        if self._channel is not None:
            self._channel.close()

    def _open(self) -> Channel:
        if self._channel is None or not self._channel.is_open:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                raise
            self._channel = Channel(connection, self._heard, self._closed)
        return self._channel

    def _heard(self, message: Message) -> None:
        if message.kind is Kind.STARTED:
            if handed := self._handed.get(message.exchange):
                handed.started.set()
            return
        if handed := self._handed.pop(message.exchange, None):
            self._settle(handed, message)

    def _closed(self) -> None:
        left, self._handed = self._handed, {}
        for handed in left.values():
            self._settle(handed, None)

    def _settle(self, handed: Handed, message: Message | None) -> None:
        if handed.outcome.done():
            return
        if message is not None and message.kind is Kind.REFUSED:
            handed.refusal = message
            handed.outcome.set_result(Outcome.REFUSED)
        elif message is not None and message.kind is Kind.DONE:
            handed.outcome.set_result(Outcome.ANSWERED)
        else:
            handed.outcome.set_result(Outcome.BROKEN if handed.started.is_set() else Outcome.LOST)
        handed.started.set()
