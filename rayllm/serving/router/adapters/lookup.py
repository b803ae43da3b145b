"""Lookup of adapters that clients name, before a request takes a replica's slot.

Clients may invent names. A router therefore asks a replica, which has the credentials, about many names at once, with
few lookups in parallel, and caches the results.
"""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import aiohttp

from rayllm.core.errors import UnavailableError
from rayllm.core.headers import LOOKUP_URL
from rayllm.lora import Adapter, adapter_not_found
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.wire.outcome import NotAnsweredError
from rayllm.serving.wire.relay.transport import HttpTransport

logger = logging.getLogger(__name__)

_CACHED_NAMES = 4096
# Short, so that an adapter that has just been added is found soon.
_MISSING_TTL_S = 2.0
# Long: the request goes to a replica, which reports what has become of the adapter.
_FOUND_TTL_S = 600.0
_BATCH_SIZE = 64
_MAX_CONCURRENT = 2
_MAX_PENDING = 4096
_TIMEOUT_S = 10.0
_TRIES = 3

FindMissing = Callable[[str, list[str]], Awaitable[Collection[str]]]
"""Returns the names, of the given ones, that are not adapters of a model."""


@dataclass
class _PendingLookup:
    """The lookup of an adapter, and the number of clients that wait for the result."""

    is_missing: asyncio.Future[bool]
    clients: int = 0
    is_sent: bool = False


class AdapterLookup:
    """Looks up the adapters of many models."""

    def __init__(self, find_missing: FindMissing) -> None:
        self._find_missing = find_missing
        self._cache: OrderedDict[Adapter, tuple[bool, float]] = OrderedDict()
        self._pending: dict[Adapter, _PendingLookup] = {}
        self._running: set[asyncio.Task[None]] = set()

    def is_known(self, adapter: Adapter) -> bool:
        """Whether the adapter existed at its last lookup, at most ten minutes ago."""
        return self._missing(adapter) is False

    async def check(self, adapter: Adapter) -> None:
        """Return if the adapter exists, or if no replica can tell.

        Raises ModelNotFoundError if the adapter does not exist, and UnavailableError if too many lookups are pending.
        """
        missing = self._missing(adapter)
        if missing is None:
            missing = await self._wait(adapter)
        if missing:
            raise adapter_not_found(adapter)

    def _missing(self, adapter: Adapter) -> bool | None:
        missing, until = self._cache.get(adapter, (None, 0.0))
        return missing if time.monotonic() < until else None

    async def _wait(self, adapter: Adapter) -> bool:
        lookup = self._pending.get(adapter)
        if lookup is None:
            if len(self._pending) >= _MAX_PENDING:
                raise UnavailableError("Too many adapters are being looked up.", "model", retry_after_s=5)
            lookup = self._pending[adapter] = _PendingLookup(asyncio.get_running_loop().create_future())
        lookup.clients += 1
        try:
            self._start_lookups()
            return await asyncio.shield(lookup.is_missing)
        finally:
            lookup.clients -= 1
            if not lookup.clients and not lookup.is_sent:
                del self._pending[adapter]

    def _start_lookups(self) -> None:
        while len(self._running) < _MAX_CONCURRENT and (adapters := self._next_batch()):
            task = in_background(self._look_up(adapters))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start_lookups()

    def _next_batch(self) -> list[Adapter]:
        waiting = [adapter for adapter, lookup in self._pending.items() if not lookup.is_sent]
        batch = [adapter for adapter in waiting if adapter.base == waiting[0].base][:_BATCH_SIZE]
        for adapter in batch:
            self._pending[adapter].is_sent = True
        return batch

    async def _look_up(self, batch: list[Adapter]) -> None:
        base, missing = batch[0].base, frozenset[str]()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                missing = frozenset(await self._find_missing(base, [adapter.name for adapter in batch]))
            for adapter in batch:
                self._remember(adapter, adapter.name in missing)
        except (TimeoutError, UnavailableError, ValueError, KeyError) as error:
            # The requests are forwarded, and their replicas report the error.
            logger.warning("Adapters of `%s` cannot be looked up: %r", base, error)
        finally:
            for adapter in batch:
                self._pending.pop(adapter).is_missing.set_result(adapter.name in missing)

    def _remember(self, adapter: Adapter, missing: bool) -> None:
        self._cache[adapter] = missing, time.monotonic() + (_MISSING_TTL_S if missing else _FOUND_TTL_S)
        self._cache.move_to_end(adapter)
        while len(self._cache) > _CACHED_NAMES:
            self._cache.popitem(last=False)


async def missing_adapters(
    replicas: Callable[[str], Collection[Replica]], transport: HttpTransport, model_id: str, names: list[str]
) -> Collection[str]:
    """The `names` that no adapter of the model has, as a replica says. Raises UnavailableError without an answer."""
    body = json.dumps({"names": names}).encode()
    # Safe to repeat: a lookup changes nothing.
    for _ in range(_TRIES):
        for replica in sorted(replicas(model_id), key=lambda replica: replica.candidate.requests):
            try:
                async with transport.send(replica, "POST", LOOKUP_URL, body, {}) as reply:
                    if reply.status == 200:
                        return frozenset(json.loads(await reply.content.read())["missing"])
            except (NotAnsweredError, aiohttp.ClientError, ConnectionError) as error:
                logger.info("The replica %s cannot look up adapters: %r", replica.id, error)
    raise UnavailableError(f"No replica of the model `{model_id}` can look up adapters.", "model")
