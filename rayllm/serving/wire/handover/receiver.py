"""The replica's side: answers requests on the clients' connections that routers pass on."""

import asyncio
import socket
import uuid
from functools import partial

from starlette.types import ASGIApp

from rayllm.core.sockets import socket_folder
from rayllm.serving.wire.handover.channel import Channel, Interruption, Kind, Message
from rayllm.serving.wire.handover.reply import HandedOverRequest


class Receiver:
    """Accepts routers of this node, and answers the requests that routers hand over with the replica's application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.path = socket_folder() / f"{uuid.uuid4().hex}.sock"
        self._channels: set[Channel] = set()
        # Also of routers that have died.
        self._requests: set[HandedOverRequest] = set()
        self._refused: dict[Channel, None] = {}
        self._socket: socket.socket | None = None

    def start(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self._socket.listen(128)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def drain(self) -> None:
        """Accept no more routers, and tell connected routers to stop sending. Requests in progress continue."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self.path.unlink(missing_ok=True)
        for channel in list(self._channels):
            channel.send_if_open(Message(Kind.DRAINING, 0))

    def close(self) -> None:
        """Close all channels. Requests and replies in progress continue on other replicas where possible."""
        self.drain()
        for request in list(self._requests):
            request.abort(Interruption.MOVED)
        for channel in list(self._channels):
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
        requests: dict[int, HandedOverRequest] = {}

        def receive(message: Message) -> None:
            if message.kind is Kind.REQUEST:
                request = HandedOverRequest(message, channel, partial(self._full, channel))
                requests[message.number] = request
                self._requests.add(request)
                request.task = asyncio.create_task(request.run(self._app))
                request.task.add_done_callback(lambda _: self._requests.discard(requests.pop(message.number)))
            elif message.kind is Kind.ABORT and (aborted := requests.get(message.number)):
                aborted.abort()

        def closed() -> None:
            self._channels.discard(channel)
            self._refused.pop(channel, None)
            # The router has died, but its clients' connections are still open here.
            for request in requests.values():
                request.adopt_connection()

        channel = Channel(accepted, receive, closed)
        self._channels.add(channel)

    def _full(self, channel: Channel) -> None:
        self._refused[channel] = None
