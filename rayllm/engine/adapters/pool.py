"""The adapters loaded in one engine: loaded on demand, once for all waiting requests, and kept up to date.

vLLM's prefix cache tells adapters apart by name, so each version of an adapter gets its own name in the engine.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rayllm.core.errors import ModelNotFoundError, RayLLMError, RequestError, SourceError, UnavailableError
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm.adapters import EngineAdapters
from rayllm.lora import Adapter, AdapterFiles, AdapterStore
from rayllm.sources import node_cache

logger = logging.getLogger(__name__)

# Failed loads remembered; clients may invent names.
_MAX_FAILURES = 1024
# A loaded adapter is not evicted for so long: the request that had it loaded is about to use it.
_RESERVED_S = 5.0
# Concurrent lookups of names, which clients may invent.
_MAX_LOOKUPS = 8
_plan: ContextVar[RequestPlan | None] = ContextVar("adapter_plan", default=None)


@dataclass
class LoadedAdapter:
    """One version of an adapter in the engine."""

    adapter: Adapter
    files: AdapterFiles
    plan: RequestPlan | None
    lora_request: Any
    users: int = 0
    is_retired: bool = False
    reserved_until: float = 0.0
    checked_at: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class AdapterPool:
    """The adapters in the engine.

    Attributes:
        store: where adapters come from.
        engine: where adapters are loaded.
        plan: makes the request plan of an adapter; None for an adapter without settings of its own.
        capacity: adapters that stay loaded; more are loaded only while requests use them.
        refresh_s: seconds between checks for a newer version of an adapter in use.
        forget_s: seconds for which a failed load is remembered.
        fetch_elsewhere: fetches a version of an adapter on the other nodes of the engine; None without any.
    """

    store: AdapterStore
    engine: EngineAdapters
    plan: Callable[[Adapter, AdapterFiles], RequestPlan | None]
    capacity: int
    refresh_s: float = 30.0
    forget_s: float = 5.0
    fetch_elsewhere: Callable[[Adapter, str], None] | None = None

    def __post_init__(self) -> None:
        # By full name: the engine has one adapter of a name, whatever its source.
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self._loading: dict[Adapter, asyncio.Task[LoadedAdapter]] = {}
        self._failures: OrderedDict[Adapter, tuple[RayLLMError, float]] = OrderedDict()
        self._unloading: set[asyncio.Task[None]] = set()
        # Own threads: a flood of invented names must not delay loading.
        self._lookups = ThreadPoolExecutor(_MAX_LOOKUPS, "adapter-lookup")

    @property
    def loaded_adapters(self) -> list[str]:
        """Full names of the loaded adapters, least recently used first."""
        return list(self._loaded)

    async def available(self) -> list[Adapter]:
        """Every adapter that can be loaded. Raises SourceError if the adapters cannot be listed."""
        return await asyncio.to_thread(self.store.adapters)

    async def missing(self, names: Sequence[str]) -> list[str]:
        """The `names` that no adapter of this model has. Nothing is loaded."""
        are_missing = await asyncio.gather(*(self._is_missing(Adapter(self.store.base, name)) for name in names))
        return [name for name, is_missing in zip(names, are_missing, strict=True) if is_missing]

    async def _is_missing(self, adapter: Adapter) -> bool:
        if str(adapter) in self._loaded or adapter in self._loading:
            return False
        if failure := self._failure(adapter):
            return isinstance(failure, ModelNotFoundError)
        try:
            return not await asyncio.get_running_loop().run_in_executor(self._lookups, self.store.exists, adapter)
        except SourceError:
            # A request for it gets the error, or this node's copy.
            return False

    @property
    def has_registered(self) -> bool:
        """Whether an adapter that an administrator registered is loaded."""
        return any(loaded.adapter.source for loaded in self._loaded.values())

    def drop_unregistered(self, registered: Collection[Adapter]) -> None:
        """Drop the adapters that an administrator registered once and that are not among `registered` now."""
        for name, loaded in list(self._loaded.items()):
            if loaded.adapter.source and loaded.adapter not in registered:
                self.drop(name)

    @asynccontextmanager
    async def use(self, adapter: Adapter, model: str) -> AsyncIterator[LoadedAdapter]:
        """Keep the adapter loaded in the block, for requests to the name `model`. Raises as `AdapterStore.fetch`."""
        loaded = await self._ready(adapter)
        while loaded.is_retired:
            loaded = await self._ready(adapter)
        loaded.users += 1
        loaded.reserved_until = 0.0
        self.engine.serve_as(model, loaded.lora_request)
        self._evict()
        try:
            yield loaded
        finally:
            loaded.users -= 1
            if loaded.is_retired and not loaded.users:
                self._unload(loaded)
            self._evict()

    async def load(self, adapter: Adapter) -> None:
        """Load the newest version of the adapter, even after a failed load. Raises as `AdapterStore.fetch`."""
        self._failures.pop(adapter, None)
        await asyncio.shield(self._load_once(adapter))

    def drop(self, name: str) -> None:
        """Unload the adapter as soon as no request uses it."""
        if loaded := self._loaded.pop(name, None):
            self._retire(loaded)

    async def _ready(self, adapter: Adapter) -> LoadedAdapter:
        if loaded := self._current(adapter):
            self._loaded.move_to_end(str(adapter))
            if time.monotonic() - loaded.checked_at > self.refresh_s:
                # The request does not wait: it uses the loaded version.
                loaded.checked_at = time.monotonic()
                self._load_once(adapter)
            return loaded
        if failure := self._failure(adapter):
            # Otherwise the traceback would grow with every request.
            raise failure.with_traceback(None)
        # Shielded: other requests may wait for the same adapter.
        return await asyncio.shield(self._load_once(adapter))

    def _current(self, adapter: Adapter) -> LoadedAdapter | None:
        """The loaded adapter; None if another source's adapter of the same name is loaded."""
        loaded = self._loaded.get(str(adapter))
        return loaded if loaded and loaded.adapter == adapter else None

    def _load_once(self, adapter: Adapter) -> asyncio.Task[LoadedAdapter]:
        if adapter not in self._loading:
            task = self._loading[adapter] = asyncio.create_task(self._load(adapter))
            task.add_done_callback(lambda task: self._on_loaded(adapter, task))
        return self._loading[adapter]

    async def _load(self, adapter: Adapter) -> LoadedAdapter:
        files = await asyncio.to_thread(self.store.fetch, adapter)
        if (current := self._current(adapter)) and current.files.version == files.version:
            node_cache().release(files.entry)
            current.checked_at = time.monotonic()
            return current
        try:
            if self.fetch_elsewhere:
                await asyncio.to_thread(self.fetch_elsewhere, adapter, files.version)
            plan = self.plan(adapter, files)
            lora_request = await self.engine.add(adapter, files.version, files.folder)
        except BaseException:
            node_cache().release(files.entry)
            raise
        reserved_until = time.monotonic() + _RESERVED_S
        loaded = LoadedAdapter(adapter, files, plan, lora_request, reserved_until=reserved_until)
        if replaced := self._loaded.pop(str(adapter), None):
            logger.info("The adapter `%s` has changed; serving its new version.", adapter)
            self._retire(replaced)
        self._loaded[str(adapter)] = loaded
        return loaded

    def _on_loaded(self, adapter: Adapter, task: asyncio.Task[LoadedAdapter]) -> None:
        del self._loading[adapter]
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, RayLLMError):
            return
        if not self._current(adapter):
            self._failures[adapter] = (error, time.monotonic())
            while len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)
        elif isinstance(error, ModelNotFoundError):
            self.drop(str(adapter))
        elif isinstance(error, RequestError | UnavailableError):
            logger.warning("The adapter `%s` is kept at its loaded version: %s", adapter, error.message)

    def _failure(self, adapter: Adapter) -> RayLLMError | None:
        error, at = self._failures.get(adapter, (None, 0.0))
        return error if time.monotonic() - at < self.forget_s else None

    def _evict(self) -> None:
        excess = len(self._loaded) - self.capacity
        now = time.monotonic()
        idle = [name for name, loaded in self._loaded.items() if not loaded.users and loaded.reserved_until < now]
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


def adapter_plan() -> RequestPlan | None:
    """The request plan of the current request's adapter; None if the base model's applies."""
    return _plan.get()


@asynccontextmanager
async def use_adapter(adapter_pool: AdapterPool, adapter: Adapter, model: str) -> AsyncIterator[LoadedAdapter]:
    """Keep the adapter loaded in the block, and apply its settings to the current task's request."""
    async with adapter_pool.use(adapter, model) as loaded:
        # One task answers one request, so there is nothing to restore.
        _plan.set(loaded.plan)
        yield loaded
