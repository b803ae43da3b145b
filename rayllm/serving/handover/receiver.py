"""The replica's side: answers requests on the client connections that routers hand over."""

from __future__ import annotations

import asyncio
import itertools
import socket
import uuid
from contextlib import suppress
from functools import partial

from starlette.types import ASGIApp

from rayllm.serving.handover.channel import Channel, Interruption, Kind, Message
from rayllm.serving.handover.connection import ClientConnection
from rayllm.serving.handover.exchange import Exchange
from rayllm.sockets import socket_folder

_POLL_S = 0.01


class Receiver:
    """Listens for routers on this node, and answers the requests they hand over.

    Args:
        app: the replica's application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.path = socket_folder() / f"{uuid.uuid4().hex}.sock"
        # Exchanges by number, by the channel to their router.
        self._channels: dict[Channel, dict[int, Exchange]] = {}
        # Those of routers that have died, by number as well.
        self._orphans: list[dict[int, Exchange]] = []
        # Connections whose reply has ended, until the router acknowledges it, by the number of the exchange.
        self._kept: dict[Channel, dict[int, ClientConnection]] = {}
        self._refused: dict[Channel, None] = {}
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Start to listen."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self._socket.listen(128)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def drain(self) -> None:
        """Accept no more routers, and tell connected ones to send no more requests. Requests in progress continue."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self.path.unlink(missing_ok=True)
        for channel in list(self._channels):
            channel.send_if_open(Message(Kind.DRAINING, 0))

    async def wait_for_acknowledgements(self, timeout_s: float) -> None:
        """Wait until routers have each request and connection again that was refused or answered here.

        A router that is being killed reads nothing more, which shows only once its channel closes. From then on its
        requests and connections are handed to another router.

        Args:
            timeout_s: seconds after which the rest is given up.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._is_unsettled:  # noqa: ASYNC110 (once in its life; each exchange would have to set an event)
                    await asyncio.sleep(_POLL_S)

    @property
    def _is_unsettled(self) -> bool:
        exchanges = itertools.chain(self._channels.values(), self._orphans)
        return any(self._kept.values()) or any(
            exchange.is_unsettled for by_number in exchanges for exchange in by_number.values()
        )

    def close(self) -> None:
        """Close all channels. Requests and replies in progress continue on other replicas where possible."""
        self.drain()
        for orphans in self._orphans:
            for exchange in list(orphans.values()):
                exchange.abort()
        for channel, exchanges in list(self._channels.items()):
            for exchange in list(exchanges.values()):
                exchange.abort(Interruption.MOVED)
            # The router has them, unless it hangs.
            for connection in self._kept.pop(channel).values():
                connection.close()
            channel.close()

    def notify_slot_free(self) -> None:
        """Tell one router that a slot is free: the one that was refused first."""
        while self._refused:
            channel = next(iter(self._refused))
            del self._refused[channel]
            if channel.is_open:
                channel.send(Message(Kind.SLOT_FREE, 0))
                return

    def _accept(self) -> None:
        assert self._socket  # noqa: S101 (called only while it listens)
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return
        exchanges: dict[int, Exchange] = {}
        kept: dict[int, ClientConnection] = {}

        def receive(message: Message) -> None:
            if message.kind is Kind.REQUEST:
                exchange = exchanges[message.exchange] = Exchange(message, channel, partial(self._full, channel), kept)
                exchange.task = asyncio.create_task(exchange.run(self._app))
                exchange.task.add_done_callback(lambda _: exchanges.pop(message.exchange, None))
            elif message.kind is Kind.ABORT and (aborted := exchanges.get(message.exchange)):
                aborted.abort()
            elif message.kind is Kind.ACKNOWLEDGED and (acknowledged := kept.pop(message.exchange, None)):
                acknowledged.close()
            elif message.kind is Kind.ACKNOWLEDGED and (refused := exchanges.get(message.exchange)):
                refused.returned()

        def closed() -> None:
            self._channels.pop(channel, None)
            self._refused.pop(channel, None)
            # The router has died, but its clients' connections are still open here.
            for connection in self._kept.pop(channel, {}).values():
                connection.return_to_router()
            self._orphans = [orphans for orphans in self._orphans if orphans] + [exchanges]
            for exchange in exchanges.values():
                exchange.take_over()

        channel = Channel(accepted, receive, closed)
        self._channels[channel] = exchanges
        self._kept[channel] = kept

    def _full(self, channel: Channel) -> None:
        self._refused[channel] = None
