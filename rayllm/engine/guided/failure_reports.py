"""Failure reports of guided decoding backends, from workers to the replica.

A logits processor cannot end one request with an error: an exception ends the engine, and a forced end of sequence
looks like an answer. So the replica listens on a TCP port, and a worker reports a failure there and waits for the
acknowledgement *before* the token that ends the sequence leaves it. The replica therefore knows of the failure when it
sees the end. TCP and not a file, since the sampling worker may be on another node (pipeline parallelism). All ranks of
tensor parallelism report the same failure, and the first counts. The children of `n` > 1 and all prompts of a list
share one ticket: if one fails, the request fails.

A ticket's id is random and known to replica and workers only, so nobody else on the network can fail a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from uuid import uuid4
from weakref import WeakValueDictionary

logger = logging.getLogger(__name__)

# The whole batch waits for this, once per failed request.
_TIMEOUT_S = 5.0
_ACKNOWLEDGED = b"ok\n"


class Ticket:
    """One request's entry. `failed` resolves to the failed stage once a worker reports it."""

    def __init__(self) -> None:
        self.id = uuid4().hex
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def fault(self) -> str | None:
        """The reported failure, or None so far."""
        return self.failed.result() if self.failed.done() else None


class Failures:
    """The replica's side: a server for reports, with the tickets of current requests.

    Tickets are held by weak reference, so requests need no cleanup however they end.
    """

    def __init__(self) -> None:
        self._tickets: WeakValueDictionary[str, Ticket] = WeakValueDictionary()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def listen(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port of `host`, which the workers must be able to reach; sets `address` to `host:port`."""
        self._server = await asyncio.start_server(self._take, host, 0)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def ticket(self) -> Ticket:
        """A new ticket, to be held for the duration of the request."""
        ticket = Ticket()
        self._tickets[ticket.id] = ticket
        return ticket

    def fail(self, ticket_id: str, fault: str) -> None:
        """Mark a request as failed, unless it is over or failed already."""
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
                message = json.loads(await reader.readline())
                self.fail(str(message["id"]), str(message["fault"]))
                writer.write(_ACKNOWLEDGED)
                await writer.drain()
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("A report of a failed guided decoding backend could not be read: %r", error)
        finally:
            writer.close()


def report(address: str, ticket_id: str, fault: str) -> None:
    """Report a failure to the replica at `address`, from a worker; returns when it is acknowledged.

    Reports that cannot be delivered are logged: the client then gets an answer that ends early.
    """
    host, _, port = address.rpartition(":")
    line = json.dumps({"id": ticket_id, "fault": fault}).encode() + b"\n"
    try:
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
            connection.sendall(line)
            if connection.recv(len(_ACKNOWLEDGED)) != _ACKNOWLEDGED:
                raise ConnectionError("no acknowledgement")
    except (OSError, ValueError):
        logger.exception("The replica at %s could not be sent the failure of a guided decoding backend.", address)
