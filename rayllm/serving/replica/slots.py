"""Slots of a replica: how many requests are in progress, and how many more may start."""

from __future__ import annotations

import asyncio
import itertools
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ray import serve
from ray.serve._private.common import RequestMetadata

from rayllm.cluster.ray_internals import this_replica

logger = logging.getLogger(__name__)


class RequestCount(Protocol):
    """A second count of the requests, which sets their limit."""

    @property
    def capacity(self) -> int:
        """Maximum number of requests in progress."""

    def add(self) -> str:
        """RequestCount one more; returns a token for `remove`."""

    def remove(self, token: str) -> None:
        """RequestCount one less."""


class Slots:
    """The slots of one replica.

    Args:
        count: counts each slot that is taken.

    `on_slot_freed` is called whenever one is free again; `all_free` is set while none is taken.
    """

    def __init__(self, count: RequestCount) -> None:
        self._count = count
        self.taken = 0
        self.work = 0
        self.on_slot_freed: Callable[[], None] = lambda: None
        self.all_free = asyncio.Event()
        self.all_free.set()

    @contextmanager
    def take(self, work: int) -> Iterator[bool]:
        """Take a slot for the block if one is free; yields whether it was.

        Args:
            work: expected cost of the request in tokens.
        """
        if self.taken >= self._count.capacity:
            yield False
            return
        self.taken += 1
        self.all_free.clear()
        self.work += work
        token = self._count.add()
        try:
            yield True
        finally:
            self.taken -= 1
            self.work -= work
            self._count.remove(token)
            if not self.taken:
                self.all_free.set()
            self.on_slot_freed()


class ServeRequestCount:
    """Ray Serve's own count of this replica's requests, which has no public interface.

    Serve admits queued requests by it, and waits for it to reach zero before it stops a replica. The capacity is
    Serve's `max_ongoing_requests`, which may change. `reserve_slot` and `release_slot` are called in process: a Ray
    message would cost more than the request.
    """

    def __init__(self) -> None:
        self._replica: Any = this_replica()
        self._loop: AbstractEventLoop = self._replica._event_loop
        self._metadata = RequestMetadata(request_id="", internal_request_id="")
        prefix = serve.get_replica_context().replica_id.unique_id
        self._tokens = (f"{prefix}-{number}" for number in itertools.count())

    @property
    def capacity(self) -> int:
        return int(self._replica.max_ongoing_requests)

    def add(self) -> str:
        token = next(self._tokens)
        self._loop.call_soon_threadsafe(self._reserve, token)
        return token

    def remove(self, token: str) -> None:
        self._loop.call_soon_threadsafe(self._replica.release_slot, token)

    def _reserve(self, token: str) -> None:
        # With a free slot this completes without waiting. If Serve has just given the last slot to a call that is still
        # on its way, the count is one short meanwhile.
        reserving = self._replica.reserve_slot(self._metadata, token)
        try:
            reserving.send(None)
        except StopIteration:
            return
        reserving.close()
