"""Messages between a router and a replica, one of which may end at any moment."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rayllm.serving.wire.handover.channel import Channel, Kind, Message
from tests.fakes.clock import pass_time, settle, until


class End:
    """One end of a channel, and what it has received."""

    def __init__(self, connection: socket.socket) -> None:
        self.received: list[Kind] = []
        self.is_closed = asyncio.Event()
        self.channel = Channel(connection, lambda message: self.received.append(message.kind), self.is_closed.set)

    def send(self, *kinds: Kind) -> None:
        for kind in kinds:
            self.channel.send(Message(kind, 1))


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    first, second = map(End, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    yield first, second
    first.channel.close()
    second.channel.close()


async def test_messages_arrive_though_their_sender_closed_without_reading_all(ends: tuple[End, End]) -> None:
    """The kernel reports the reset before it delivers them: a router that missed `DONE` would have the request answered
    once more, and the client would take that for the answer to its next one.
    """
    router, replica = ends
    router.send(Kind.ABORT)
    replica.send(Kind.STARTED, Kind.DONE)
    replica.channel.close()
    await router.is_closed.wait()
    assert router.received == [Kind.STARTED, Kind.DONE]


async def test_messages_arrive_though_their_sender_has_gone_before_the_next_is_sent_to_it(
    ends: tuple[End, End],
) -> None:
    router, replica = ends
    replica.send(Kind.STARTED, Kind.DONE)
    replica.channel.close()
    router.send(Kind.REQUEST)
    await router.is_closed.wait()
    assert router.received == [Kind.STARTED, Kind.DONE]


async def test_all_messages_arrive_however_many_they_are(ends: tuple[End, End]) -> None:
    router, replica = ends
    replica.send(*[Kind.STARTED] * 150)
    await replica.channel.flush()
    router.send(Kind.ABORT)
    replica.channel.close()
    router.send(Kind.REQUEST)
    await router.is_closed.wait()
    assert router.received == [Kind.STARTED] * 150


async def test_a_message_for_which_the_kernel_has_no_room_is_sent_later(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the channel were closed instead, the replica would go on with what the router has another one answer."""
    router, replica = ends
    original, failures = socket.send_fds, [errno.ETOOMANYREFS, errno.ENOBUFS]

    def send_fds(*args: Any) -> int:
        if failures:
            raise OSError(failures.pop(), "no room")
        return original(*args)

    monkeypatch.setattr(socket, "send_fds", send_fds)
    router.send(Kind.REQUEST, Kind.ABORT)
    await router.channel.flush()
    await until(lambda: len(replica.received) == 2)
    assert replica.received == [Kind.REQUEST, Kind.ABORT]
    assert router.channel.is_open


async def test_a_channel_may_be_closed_while_the_kernel_has_no_room(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_fds(*_: Any) -> int:
        raise OSError(errno.ENOMEM, "no room")

    router, replica = ends
    with monkeypatch.context() as patched:
        patched.setattr(socket, "send_fds", send_fds)
        router.send(Kind.REQUEST)
        router.channel.close()
        await router.channel.flush()
    # The time of the next attempt passes.
    pass_time(1)
    await settle()
    await replica.is_closed.wait()
    assert replica.received == []
