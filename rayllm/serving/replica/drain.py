"""Draining a replica: what happens to new requests, and to those in progress, between SIGTERM and the exit."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.cluster.ray_internals import replace_sigterm_exit
from rayllm.core import headers
from rayllm.serving.replica.middleware import send_empty
from rayllm.serving.replica.slots import Slots
from rayllm.serving.wire.handover.receiver import Receiver


class DrainGate:
    """ASGI middleware that turns requests away while the replica drains or its engine is dead; routers ask others.

    Requests that fail because the engine has died are turned away as well.
    """

    def __init__(self, app: ASGIApp, engine_has_died: Callable[[], bool]) -> None:
        self._app = app
        self._engine_has_died = engine_has_died
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_draining or self._engine_has_died():
            await send_empty(send, 503, [(headers.DRAINING.encode(), b"1")])
            return
        is_lost = False

        async def send_unless_lost(message: Message) -> None:
            nonlocal is_lost
            if message["type"] == "http.response.start" and message["status"] >= 500 and self._engine_has_died():
                is_lost = True
                await send_empty(send, 503, [(headers.LOST.encode(), b"1")])
            elif not is_lost:
                await send(message)

        await self._app(scope, receive, send_unless_lost)


async def drain(gate: DrainGate, receiver: Receiver, slots: Slots, timeout_s: float) -> None:
    """Turn new requests away, and wait up to `timeout_s` seconds for the requests in progress."""
    gate.is_draining = True
    receiver.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await slots.all_free.wait()


def drain_on_sigterm(start: Callable[[], object]) -> None:
    """Make the first SIGTERM call `start`, and a second SIGTERM end this process.

    `start` is called in the main thread, between any two Python instructions, so it must return at once.
    """
    is_draining = False

    def wrap(exit_process: Callable[..., Any]) -> Callable[..., Any]:
        def on_sigterm(*args: Any, **options: Any) -> None:
            nonlocal is_draining
            if is_draining:
                exit_process(*args, **options)
            is_draining = True
            start()

        return on_sigterm

    replace_sigterm_exit(wrap)


def end_process() -> None:
    """Exit at once, after flushing the logs. Ray Serve's controller notices."""
    logging.shutdown()
    for handler in logging.getLogger("ray.serve").handlers:
        handler.flush()
    os._exit(1)
