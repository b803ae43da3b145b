"""The router's side: a request goes to a replica of this node with its client's connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayllm.serving.handover.channel import Channel, Kind, Message

logger = logging.getLogger(__name__)

# Seconds that an aborted replica has to say what it wrote. It says so at once, unless it hangs.
_LAST_WORD_S = 2.0


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


class ReplicaGoneError(Exception):
    """The replica takes no requests any more, and never will again; nothing was sent."""


@dataclass
class Handover:
    """A request in a replica's hands: `started` is set with the reply's first bytes, `outcome` settled at its end."""

    number: int
    outcome: asyncio.Future[Outcome]
    started: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Message | None = None


class Sender:
    """The way to one replica.

    Args:
        path: of the replica's Unix socket.
        room: called when a slot is free at a replica that had refused for want of one.
        leaving: called when the replica takes no more requests, or is gone.
    """

    def __init__(self, path: str, room: Callable[[], None], leaving: Callable[[], None]) -> None:
        self._path = path
        self._room = room
        self._leaving = leaving
        self._numbers = itertools.count(1)
        self._handover: dict[int, Handover] = {}
        self._channel: Channel | None = None
        self._is_closed = False

    def hand_over(self, file: int, head: Mapping[str, Any], body: bytes) -> Handover:
        """Hand a request over.

        Args:
            file: descriptor of the client's connection. The replica gets a copy.
            head: `method`, `path`, `headers`, `reply_headers`, `keeps_alive` and `send_timeout_s`.
            body: the request's.

        Raises:
            ReplicaGoneError: the replica takes no requests any more.
            OSError: the replica cannot be reached this way; nothing was sent.
        """
        handover = Handover(next(self._numbers), asyncio.get_running_loop().create_future())
        channel = self._open()
        self._handover[handover.number] = handover
        try:
            channel.send(Message(Kind.REQUEST, handover.number, dict(head), body, (file,)))
        except OSError:
            del self._handover[handover.number]
            raise
        return handover

    async def abort(self, handover: Handover) -> Outcome:
        """Have the replica stop, and wait for what it says of the connection. From then on it writes nothing.

        Returns BROKEN for a replica that does not say: it may have written, and may still write.
        """
        if not handover.outcome.done() and self._channel is not None and self._channel.is_open:
            self._channel.send(Message(Kind.ABORT, handover.number))
        await asyncio.wait((handover.outcome,), timeout=_LAST_WORD_S)
        self._handover.pop(handover.number, None)
        if not handover.outcome.done():
            logger.warning("A replica did not stop within %g s of being told to.", _LAST_WORD_S)
            return Outcome.BROKEN
        return handover.outcome.result()

    def close(self) -> None:
        """Leave the replica, which answers what it has in hand by itself."""
        self._is_closed = True
        left, self._handover = self._handover, {}
        for handover in left.values():
            handover.outcome.cancel()
        if self._channel is not None:
            self._channel.close()

    def _open(self) -> Channel:
        if self._channel is None or not self._channel.is_open:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(self._path)
            except (ConnectionRefusedError, FileNotFoundError):
                # The path is of one process's life, and nobody listens there.
                connection.close()
                raise ReplicaGoneError from None
            except OSError:
                connection.close()
                raise
            self._channel = Channel(connection, self._receive, self._closed)
        return self._channel

    def _receive(self, message: Message) -> None:
        if message.kind is Kind.SLOT_FREE:
            self._room()
        elif message.kind is Kind.DRAINING:
            self._leaving()
        elif message.kind is Kind.STARTED:
            if handover := self._handover.get(message.exchange):
                handover.started.set()
        elif handover := self._handover.pop(message.exchange, None):
            self._settle(handover, message)

    def _closed(self) -> None:
        if self._is_closed:
            return
        # Known before the requests are given back: none of them asks the same replica again.
        self._check()
        left, self._handover = self._handover, {}
        for handover in left.values():
            self._settle(handover, None)

    def _check(self) -> None:
        """See whether the replica is gone, or only its end of the channel."""
        try:
            self._open()
        except ReplicaGoneError:
            self._leaving()
        except OSError as error:
            logger.warning("A replica closed its channel and cannot be reached now: %r", error)

    def _settle(self, handover: Handover, message: Message | None) -> None:
        if handover.outcome.done():
            return
        if message is not None and message.kind is Kind.REFUSED:
            handover.refusal = message
            handover.outcome.set_result(Outcome.REFUSED)
        elif message is not None and message.kind is Kind.DONE:
            handover.outcome.set_result(Outcome.ANSWERED)
        else:
            handover.outcome.set_result(Outcome.BROKEN if handover.started.is_set() else Outcome.LOST)
        handover.started.set()
