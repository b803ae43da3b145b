"""The router's side: passes requests with their clients' connections to a replica on this node."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayllm.core.request_stats import RequestStats
from rayllm.serving.wire.handover.channel import Channel, Interruption, Kind, Message
from rayllm.serving.wire.journal import accepted_bytes

logger = logging.getLogger(__name__)

# Seconds to wait for an aborted replica's report. It reports at once, unless it hangs.
_ABORT_TIMEOUT_S = 2.0


class End(Enum):
    """How a handover ended."""

    ANSWERED = "answered"
    """The client has the complete reply."""
    REFUSED = "refused"
    """Nothing was sent to the client; the replica returns the response for it."""
    LOST = "lost"
    """The replica died before it sent anything."""
    FAILED = "failed"
    """The replica failed on the request before it sent anything."""
    BROKEN = "broken"
    """The replica died or failed in the middle of the reply."""
    DETACHED = "detached"
    """This router stops, and the replica answers by itself: the router must not write to the client any more."""


class ReplicaGoneError(Exception):
    """The replica takes no more requests; nothing was sent."""


@dataclass
class Handover:
    """A request that a replica has, with its client's connection.

    Attributes:
        number: the handover's number on the channel.
        end: how the handover ended, once it has.
        connection: the client's socket.
        accepted_before: bytes that the kernel had accepted for the client before.
        size: bytes of a reply that is sent in one piece, with its head; 0 for other replies.
        started: set with the first bytes of the reply, and at the end.
        refusal: the replica's response for the client, if it has sent nothing itself.
        stats: what the engine did, once the replica has told.
        interruption: why another replica should continue a broken reply; None if no replica should.
    """

    number: int
    end: asyncio.Future[End]
    connection: socket.socket
    accepted_before: int
    size: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Message | None = None
    stats: RequestStats | None = None
    interruption: Interruption | None = None

    @property
    def bytes_sent(self) -> int | None:
        """Bytes of the reply that have been written to the client's connection; None if the connection is closed."""
        try:
            return accepted_bytes(self.connection) - self.accepted_before
        except OSError:
            return None

    @property
    def is_complete(self) -> bool:
        """Whether a reply that is sent in one piece has been written, whatever the replica says."""
        return bool(self.size) and self.bytes_sent == self.size


class Sender:
    """Hands requests over to one replica.

    Args:
        path: the replica's Unix socket.
        on_slot_free: called when a replica that had no slot has one again.
        on_draining: called when the replica takes no more requests, or has died.
    """

    def __init__(self, path: str, on_slot_free: Callable[[], None], on_draining: Callable[[], None]) -> None:
        self._path = path
        self._on_slot_free = on_slot_free
        self._on_draining = on_draining
        self._numbers = itertools.count(1)
        self._handovers: dict[int, Handover] = {}
        self._channel: Channel | None = None
        self._is_closed = False

    def hand_over(
        self,
        connection: socket.socket,
        head: Mapping[str, Any],
        body: bytes,
        journal: int | None = None,
    ) -> Handover:
        """Hand a request over.

        Args:
            connection: the client's; the replica gets a duplicate.
            head: `method`, `path`, `headers`, `reply_headers`, `keeps_alive` and `send_timeout_s`.
            journal: descriptor of the journal of the reply, which `journal` in the head describes; None to keep none.

        Raises:
            ReplicaGoneError: the replica takes no more requests.
            OSError: the replica's socket cannot be reached; nothing was sent.
        """
        channel = self._open()
        end = asyncio.get_running_loop().create_future()
        handover = Handover(next(self._numbers), end, connection, accepted_bytes(connection))
        self._handovers[handover.number] = handover
        try:
            files = (connection.fileno(),) if journal is None else (connection.fileno(), journal)
            channel.send(Message(Kind.REQUEST, handover.number, dict(head), body, files))
        except OSError:
            del self._handovers[handover.number]
            raise
        return handover

    async def abort(self, handover: Handover) -> End:
        """Stop the replica's reply, and wait for the report after which the replica writes nothing.

        Returns BROKEN without a report: the replica may have written, and may still write.
        """
        if not handover.end.done() and self._channel is not None and self._channel.is_open:
            self._channel.send(Message(Kind.ABORT, handover.number))
        await asyncio.wait((handover.end,), timeout=_ABORT_TIMEOUT_S)
        self._handovers.pop(handover.number, None)
        if not handover.end.done():
            logger.warning("A replica did not stop within %g s.", _ABORT_TIMEOUT_S)
            return End.BROKEN
        return handover.end.result()

    def close(self) -> None:
        """Close the channel; the replica finishes its replies without this router."""
        self._is_closed = True
        pending, self._handovers = self._handovers, {}
        for handover in pending.values():
            if not handover.end.done():
                handover.end.set_result(End.DETACHED)
                handover.started.set()
        if self._channel is not None:
            self._channel.close()

    def _open(self) -> Channel:
        if self._channel is None or not self._channel.is_open:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(self._path)
            except (ConnectionRefusedError, FileNotFoundError):
                # The socket belongs to one process, which no longer listens on it.
                connection.close()
                raise ReplicaGoneError from None
            except OSError:
                connection.close()
                raise
            self._channel = Channel(connection, self._receive, self._closed)
        return self._channel

    def _receive(self, message: Message) -> None:
        if message.kind is Kind.SLOT_FREE:
            self._on_slot_free()
        elif message.kind is Kind.DRAINING:
            self._on_draining()
        elif message.kind is Kind.STARTED:
            if handover := self._handovers.get(message.number):
                handover.size = message.head.get("size", 0)
                handover.started.set()
        elif handover := self._handovers.pop(message.number, None):
            self._settle(handover, message)

    def _closed(self) -> None:
        if self._is_closed:
            return
        # Checked before the requests are returned, so that none of them asks the same replica again.
        self._check()
        pending, self._handovers = self._handovers, {}
        for handover in pending.values():
            self._settle(handover, None)

    def _check(self) -> None:
        """Find out whether the replica has died, or only its end of the channel."""
        try:
            self._open()
        except ReplicaGoneError:
            self._on_draining()
        except OSError as error:
            logger.warning("A replica closed its channel and cannot be reached now: %r", error)

    def _settle(self, handover: Handover, message: Message | None) -> None:
        if handover.end.done():
            return
        if message is not None and (stats := message.head.get("stats")):
            handover.stats = RequestStats.from_json(stats)
        if message is not None and message.kind is Kind.REFUSED:
            handover.refusal = message
            handover.end.set_result(End.REFUSED)
        elif message is not None and message.kind is Kind.DONE:
            handover.end.set_result(End.ANSWERED)
        elif handover.started.is_set():
            cause = Interruption.LOST if message is None else message.head.get("interruption")
            handover.interruption = Interruption(cause) if cause else None
            handover.end.set_result(End.BROKEN)
        else:
            handover.end.set_result(End.LOST if message is None else End.FAILED)
        handover.started.set()
