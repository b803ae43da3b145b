"""The adapters loaded in one engine: loaded on demand, once however many requests wait, and kept up to date.

vLLM finds an adapter by the model name in a request. Its prefix cache also tells adapters apart by name, so here each
version of an adapter gets a name of its own in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rayllm.core.errors import ModelNotFoundError, RayLLMError, RequestError, SourceError, UnavailableError
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm.adapters import AdapterSlots
from rayllm.lora import AdapterFiles, AdapterName, AdapterStore
from rayllm.sources import node_cache

logger = logging.getLogger(__name__)

# Failed loads remembered; clients may invent names.
_MAX_FAILURES = 1024
_RESERVED_S = 5.0
# Concurrent lookups of names, which clients may invent.
_MAX_LOOKUPS = 8


@dataclass
class LoadedAdapter:
    """One version of an adapter in the engine."""

    name: AdapterName
    path: str | None
    files: AdapterFiles
    plan: RequestPlan | None
    lora_request: Any
    users: int = 0
    is_retired: bool = False
    # A waiting request is about to use it; until then it is not evicted.
    is_reserved_until: float = 0.0
    checked_at: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class AdapterPool:
    """The adapters in the engine.

    `capacity` of them are kept loaded, and more only while requests use them. One in use is checked for a newer version
    every `refresh_s` seconds; a failed load is remembered for `forget_s`. `plan` makes the request plan of an adapter
    with settings of its own.
    """

    store: AdapterStore
    engine: AdapterSlots
    plan: Callable[[AdapterName, AdapterFiles], RequestPlan | None]
    capacity: int
    refresh_s: float = 30.0
    forget_s: float = 5.0

    def __post_init__(self) -> None:
        self._adapters: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self._loading: dict[tuple[str, str | None], asyncio.Task[LoadedAdapter]] = {}
        self._failures: OrderedDict[tuple[str, str | None], tuple[RayLLMError, float]] = OrderedDict()
        self._unloading: set[asyncio.Task[None]] = set()
        # Own threads: a flood of invented names must not delay loading.
        self._lookups = ThreadPoolExecutor(_MAX_LOOKUPS, "adapter-lookup")

    @property
    def loaded_adapters(self) -> list[str]:
        """Ids of the loaded adapters, least recently used first."""
        return list(self._adapters)

    async def available(self) -> list[AdapterName]:
        """Every adapter that can be loaded.

        Raises:
            SourceError: they cannot be listed.
        """
        return await asyncio.to_thread(self.store.names)

    async def missing(self, adapters: Sequence[str]) -> list[str]:
        """Those of `adapters`, named without the base, that do not exist. Nothing is loaded."""
        are_missing = await asyncio.gather(*(self._is_missing(AdapterName(self.store.base, name)) for name in adapters))
        return [adapter for adapter, is_missing in zip(adapters, are_missing, strict=True) if is_missing]

    async def _is_missing(self, name: AdapterName) -> bool:
        key = (str(name), None)
        if str(name) in self._adapters or key in self._loading:
            return False
        if failure := self._failure(key):
            return isinstance(failure, ModelNotFoundError)
        try:
            return not await asyncio.get_running_loop().run_in_executor(self._lookups, self.store.exists, name)
        except SourceError:
            # A request for it gets the error, or this node's copy.
            return False

    @property
    def has_registered(self) -> bool:
        """Whether an adapter from an administrator's location is loaded."""
        return any(loaded.path is not None for loaded in self._adapters.values())

    def keep_registered(self, paths: Collection[str]) -> None:
        """Drop adapters from administrators' locations that are not among `paths`: they were unloaded."""
        for name, loaded in list(self._adapters.items()):
            if loaded.path is not None and loaded.path not in paths:
                self.drop(name)

    @asynccontextmanager
    async def use(self, name: AdapterName, path: str | None, model: str) -> AsyncIterator[LoadedAdapter]:
        """Keep the adapter loaded for the duration of the block.

        The requests are to the name `model`, which may be another; `path` is the adapter's location, if an
        administrator loaded it.

        Raises:
            ModelNotFoundError, RequestError, UnavailableError: as `AdapterStore.fetch`.
        """
        loaded = await self._ready(name, path)
        while loaded.is_retired:
            loaded = await self._ready(name, path)
        loaded.users += 1
        loaded.is_reserved_until = 0.0
        self.engine.serve_as(model, loaded.lora_request)
        self._evict()
        try:
            yield loaded
        finally:
            loaded.users -= 1
            if loaded.is_retired and not loaded.users:
                self._unload(loaded)
            self._evict()

    async def load(self, name: AdapterName, path: str | None = None) -> None:
        """Load the newest version of the adapter, whatever failed before.

        Raises:
            ModelNotFoundError, RequestError, UnavailableError: as `AdapterStore.fetch`.
        """
        self._failures.pop((str(name), path), None)
        await asyncio.shield(self._load_once(name, path))

    def drop(self, name: str) -> None:
        """Unload the adapter as soon as no request uses it."""
        if loaded := self._adapters.pop(name, None):
            self._retire(loaded)

    async def _ready(self, name: AdapterName, path: str | None) -> LoadedAdapter:
        loaded = self._adapters.get(str(name))
        if loaded is not None and loaded.path == path:
            self._adapters.move_to_end(str(name))
            if time.monotonic() - loaded.checked_at > self.refresh_s:
                # The request does not wait: it uses the loaded version.
                loaded.checked_at = time.monotonic()
                self._load_once(name, path)
            return loaded
        if failure := self._failure((str(name), path)):
            # Otherwise the traceback would grow with every request.
            raise failure.with_traceback(None)
        # Shielded: other requests may wait for the same adapter.
        return await asyncio.shield(self._load_once(name, path))

    def _load_once(self, name: AdapterName, path: str | None) -> asyncio.Task[LoadedAdapter]:
        key = (str(name), path)
        if key not in self._loading:
            task = self._loading[key] = asyncio.create_task(self._load(name, path))
            task.add_done_callback(lambda task: self._on_loaded(key, task))
        return self._loading[key]

    async def _load(self, name: AdapterName, path: str | None) -> LoadedAdapter:
        files = await asyncio.to_thread(self.store.fetch, name, path)
        current = self._adapters.get(str(name))
        if current is not None and current.path == path and current.files.version == files.version:
            node_cache().release(files.entry)
            current.checked_at = time.monotonic()
            return current
        try:
            plan = self.plan(name, files)
            loaded = await self.engine.add(str(name), f"{name}@{files.version}", files.folder)
        except BaseException:
            node_cache().release(files.entry)
            raise
        loaded = LoadedAdapter(name, path, files, plan, loaded, is_reserved_until=time.monotonic() + _RESERVED_S)
        if current := self._adapters.get(str(name)):
            logger.info("The adapter `%s` has changed; serving its new version.", name)
            self._retire(current)
        self._adapters[str(name)] = loaded
        self._adapters.move_to_end(str(name))
        return loaded

    def _on_loaded(self, key: tuple[str, str | None], task: asyncio.Task[LoadedAdapter]) -> None:
        del self._loading[key]
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, RayLLMError):
            return
        loaded = self._adapters.get(key[0])
        if loaded is None or loaded.path != key[1]:
            self._failures[key] = (error, time.monotonic())
            while len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)
        elif isinstance(error, ModelNotFoundError):
            self.drop(key[0])
        elif isinstance(error, RequestError | UnavailableError):
            logger.warning("The adapter `%s` is kept at its loaded version: %s", key[0], error.message)

    def _failure(self, key: tuple[str, str | None]) -> RayLLMError | None:
        error, at = self._failures.get(key, (None, 0.0))
        return error if time.monotonic() - at < self.forget_s else None

    def _evict(self) -> None:
        excess = len(self._adapters) - self.capacity
        now = time.monotonic()
        idle = [name for name, r in self._adapters.items() if not r.users and r.is_reserved_until < now]
        for name in idle[: max(0, excess)]:
            self.drop(name)

    def _retire(self, loaded: LoadedAdapter) -> None:
        loaded.is_retired = True
        if not loaded.users:
            self._unload(loaded)

    def _unload(self, loaded: LoadedAdapter) -> None:
        async def unload() -> None:
            await self.engine.remove(loaded.lora_request)
            node_cache().release(loaded.files.entry)

        task = asyncio.create_task(unload())
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)
