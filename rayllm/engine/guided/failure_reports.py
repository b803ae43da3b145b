"""How a worker tells the replica that a backend failed on a request.

The engine has no way to end one request with an error from inside a logits processor: an exception there ends the
engine, and a forced end of sequence looks like an answer. So the replica listens on a TCP port, and a worker that sees
a backend fail says so there, *before* the token that ends the sequence leaves it, and waits for the acknowledgement.
Therefore the replica knows of the failure when it sees the end. TCP and not a file, since the worker that samples may
be on another node (pipeline parallelism); all ranks of tensor parallelism report the same, and the first counts. The
children of `n` > 1 and all prompts of a list share one ticket: if one fails, the request fails.

A ticket's id is a random word that only replica and workers know, so nobody else on the network can fail a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from uuid import uuid4
from weakref import WeakValueDictionary

logger = logging.getLogger(__name__)

# A step of the whole batch waits for it, once a failed request.
_TIMEOUT_S = 5.0
_ACKNOWLEDGED = b"ok\n"


class Ticket:
    """One request's entry. `failed` is done once a worker has reported it; its result says at what the backend was."""

    def __init__(self) -> None:
        self.id = uuid4().hex
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def fault(self) -> str | None:
        """What the worker said, or None so far."""
        return self.failed.result() if self.failed.done() else None


class Failures:
    """The replica's side: it listens, and knows the requests that are being answered.

    Tickets are forgotten when nobody holds them any more, so a request needs no clearing up however it ends.
    """

    def __init__(self) -> None:
        self._tickets: WeakValueDictionary[str, Ticket] = WeakValueDictionary()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def listen(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port of `host`, an address that the workers can reach; then `address` is `host:port`."""
        self._server = await asyncio.start_server(self._take, host, 0)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def ticket(self) -> Ticket:
        """A new entry, to be held as long as the request lasts."""
        ticket = Ticket()
        self._tickets[ticket.id] = ticket
        return ticket

    def fail(self, ticket_id: str, fault: str) -> None:
        """Mark a request as failed; one that is over or failed already is left alone."""
        ticket = self._tickets.get(ticket_id)
        if ticket is not None and not ticket.failed.done():
            ticket.failed.set_result(fault)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                said = json.loads(await reader.readline())
                self.fail(str(said["id"]), str(said["fault"]))
                writer.write(_ACKNOWLEDGED)
                await writer.drain()
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("A report of a failed guided decoding backend could not be read: %r", error)
        finally:
            writer.close()


def report(address: str, ticket_id: str, fault: str) -> None:
    """Tell the replica at `address`, from a worker; returns when it knows.

    A report that does not get through is logged: the client then gets an answer that ends early.
    """
    host, _, port = address.rpartition(":")
    line = json.dumps({"id": ticket_id, "fault": fault}).encode() + b"\n"
    try:
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
            connection.sendall(line)
            if connection.recv(len(_ACKNOWLEDGED)) != _ACKNOWLEDGED:
                raise ConnectionError("no acknowledgement")
    except (OSError, ValueError):
        logger.exception("The replica at %s could not be told that a guided decoding backend failed.", address)
