"""How many requests a replica has in hand, and whether there is room for one more."""

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


class Count(Protocol):
    """Who else counts the requests, and says how many there may be."""

    @property
    def capacity(self) -> int:
        """Requests that the replica may have in hand."""

    def add(self) -> str:
        """Count one more; gives what to remove it by."""

    def remove(self, token: str) -> None:
        """Count one less."""


class Slots:
    """The slots of one replica.

    Args:
        counted: is told of each that is taken.

    `freed` is called whenever one is free again; `all_free` is set while none is taken.
    """

    def __init__(self, counted: Count) -> None:
        self._counted = counted
        self.taken = 0
        self.work = 0
        self.freed: Callable[[], None] = lambda: None
        self.all_free = asyncio.Event()
        self.all_free.set()

    @contextmanager
    def take(self, work: int) -> Iterator[bool]:
        """Take a slot for the body of the block, if one is free; gives whether it was.

        Args:
            work: tokens that the request is expected to cost.
        """
        if self.taken >= self._counted.capacity:
            yield False
            return
        self.taken += 1
        self.all_free.clear()
        self.work += work
        token = self._counted.add()
        try:
            yield True
        finally:
            self.taken -= 1
            self.work -= work
            self._counted.remove(token)
            if not self.taken:
                self.all_free.set()
            self.freed()


class ServeCount:
    """Ray Serve's own count of this replica's requests, which has no public way in.

    By it Serve lets waiting requests go on, and waits for the last one before it stops a replica; the capacity is its
    `max_ongoing_requests`, which may change. Uses `reserve_slot` and `release_slot` of the replica's actor, in process:
    a Ray message to oneself would cost more than the exchange.
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
        # Where there is room this does not wait, and so is done at once; where Serve has given the last slot to a
        # request that is still on its way, the count is one short for as long.
        reserving = self._replica.reserve_slot(self._metadata, token)
        try:
            reserving.send(None)
        except StopIteration:
            return
        reserving.close()
