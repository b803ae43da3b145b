"""Failure reports of guided decoding backends, from workers to the replica.

A logits processor cannot end one request with an error: an exception ends the engine, and a forced end of sequence
looks like an answer. So the replica listens on a TCP port, since workers may be on another node. A worker reports a
failure there, and waits for the acknowledgement *before* it sends the token that ends the sequence. All ranks of tensor
parallelism report the same failure, and the first report counts. All sequences of a request share one ticket.

A ticket's id is random: only the replica and its workers can fail a request.
"""

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
    """A guided request. `failed` resolves to the failed stage once a worker reports a failure."""

    def __init__(self) -> None:
        self.id = uuid4().hex
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def fault(self) -> str | None:
        """The reported failure; None so far."""
        return self.failed.result() if self.failed.done() else None


class Failures:
    """A server in the replica for reports, with weak references to the tickets of current requests."""

    def __init__(self) -> None:
        self._tickets: WeakValueDictionary[str, Ticket] = WeakValueDictionary()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def listen(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port of `host`, which the workers must be able to reach; sets `address` to `host:port`."""
        self._server = await asyncio.start_server(self._handle, host, 0)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def ticket(self) -> Ticket:
        """A new ticket, valid while the caller keeps a reference."""
        ticket = Ticket()
        self._tickets[ticket.id] = ticket
        return ticket

    def fail(self, ticket_id: str, fault: str) -> None:
        """Mark a request as failed, unless the request has ended or failed already."""
        ticket = self._tickets.get(ticket_id)
        if ticket is not None and not ticket.failed.done():
            ticket.failed.set_result(fault)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
    """Report a failure from a worker to the replica at `address`, and wait for the acknowledgement.

    A report that cannot be delivered is logged: the client then gets an answer that ends early.
    """
    host, _, port = address.rpartition(":")
    line = json.dumps({"id": ticket_id, "fault": fault}).encode() + b"\n"
    try:
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
            connection.sendall(line)
            if connection.recv(len(_ACKNOWLEDGED)) != _ACKNOWLEDGED:
                raise ConnectionError("no acknowledgement")
    except (OSError, ValueError):
        logger.exception("The replica at %s did not get the report of a failed guided decoding backend.", address)
