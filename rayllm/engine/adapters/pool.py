"""The adapters that one engine holds: loaded when asked for, once however many ask, and kept up to date.

vLLM finds an adapter by the name of the model that a request asks for. Here that name leads to a version of the
adapter, which the engine knows by a name of its own: vLLM tells adapters apart by name alone, in its prefix cache too.
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
from pathlib import Path
from typing import Any, Protocol

from rayllm.engine.request_plan import RequestPlan
from rayllm.errors import ModelNotFoundError, RayLLMError, RequestError, SourceError, UnavailableError
from rayllm.lora import AdapterFiles, AdapterName, AdapterStore
from rayllm.sources import node_cache

logger = logging.getLogger(__name__)

# Names are the clients' to invent: of what failed, only so much is remembered.
_MOST_FAILURES = 1024
_EXPECTED_S = 5.0
# Places that are looked into at once for names that may be invented.
_LOOKUPS_AT_ONCE = 8


class AdapterEngine(Protocol):
    """The part of vLLM that adapters need; see `rayllm.engine.vllm.AdapterSlots`."""

    async def add(self, name: str, key: str, folder: Path) -> Any:
        """Load the adapter `name`, which lies in `folder`, as `key`; returns what the engine calls it.

        Raises:
            RequestError: its files are at fault.
            UnavailableError: the engine failed on it.
            EngineError: the engine is dead.
        """

    def answer_to(self, name: str, loaded: Any) -> None:
        """Let requests for the model `name` use what `add` returned."""

    async def remove(self, loaded: Any) -> None:
        """Forget what `add` returned, under all its names."""


@dataclass
class PooledAdapter:
    """One version of an adapter in the engine."""

    name: AdapterName
    path: str | None
    files: AdapterFiles
    plan: RequestPlan | None
    loaded: Any
    users: int = 0
    is_retired: bool = False
    # Somebody is about to use what was just loaded: until then it is not surplus.
    is_expected_until: float = 0.0
    checked_at: float = field(default_factory=time.monotonic)


class AdapterPool:
    """The adapters in the engine.

    Args:
        store: where they come from.
        engine: takes them.
        plan: what an adapter's own settings mean for its requests.
        capacity: adapters kept; more only while requests use them.
        refresh_s: seconds after which an adapter's place is asked for a newer version.
        forget_s: seconds for which a failure is remembered.
    """

    def __init__(
        self,
        store: AdapterStore,
        engine: AdapterEngine,
        plan: Callable[[AdapterName, AdapterFiles], RequestPlan | None],
        capacity: int,
        refresh_s: float = 30.0,
        forget_s: float = 5.0,
    ) -> None:
        self._store = store
        self._engine = engine
        self._plan = plan
        self._capacity = capacity
        self._refresh_s = refresh_s
        self._forget_s = forget_s
        self._adapters: OrderedDict[str, PooledAdapter] = OrderedDict()
        self._loading: dict[tuple[str, str | None], asyncio.Task[PooledAdapter]] = {}
        self._failures: OrderedDict[tuple[str, str | None], tuple[RayLLMError, float]] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()
        # Threads of their own: a flood of invented names holds up no adapter that is being loaded.
        self._lookups = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "adapter-lookup")

    @property
    def names(self) -> list[str]:
        """Names of the adapters in the engine, the one that was not asked for longest first."""
        return list(self._adapters)

    async def found(self) -> list[AdapterName]:
        """Every adapter that may be had, in the engine or not.

        Raises:
            SourceError: they cannot be listed.
        """
        return await asyncio.to_thread(self._store.names)

    async def missing(self, adapters: Sequence[str]) -> list[str]:
        """Those of `adapters`, by their names without the base's, that are not there. Nothing is loaded."""
        found = await asyncio.gather(*(self._is_missing(AdapterName(self._store.base, name)) for name in adapters))
        return [adapter for adapter, is_missing in zip(adapters, found, strict=True) if is_missing]

    async def _is_missing(self, name: AdapterName) -> bool:
        key = (str(name), None)
        if str(name) in self._adapters or key in self._loading:
            return False
        if failure := self._failure(key):
            return isinstance(failure, ModelNotFoundError)
        try:
            return not await asyncio.get_running_loop().run_in_executor(self._lookups, self._store.holds, name)
        except SourceError:
            # A request for it is told, or served from what the node has.
            return False

    @property
    def has_loaded(self) -> bool:
        """Whether any adapter in the engine has a place of its own."""
        return any(pooled.path is not None for pooled in self._adapters.values())

    def keep_loaded(self, paths: Collection[str]) -> None:
        """Drop the adapters with a place of their own that is not among `paths`: they were unloaded."""
        for name, pooled in list(self._adapters.items()):
            if pooled.path is not None and pooled.path not in paths:
                self.drop(name)

    @asynccontextmanager
    async def use(self, name: AdapterName, path: str | None, asked: str) -> AsyncIterator[PooledAdapter]:
        """Have the adapter in the engine for the body of the block.

        Args:
            name: the adapter.
            path: its own place, where it was loaded from one.
            asked: the model's name in the request, which need not be the adapter's.

        Raises:
            ModelNotFoundError, RequestError, UnavailableError: as `AdapterStore.have`.
        """
        pooled = await self._ready(name, path)
        while pooled.is_retired:
            pooled = await self._ready(name, path)
        pooled.users += 1
        pooled.is_expected_until = 0.0
        self._engine.answer_to(asked, pooled.loaded)
        self._keep_within_capacity()
        try:
            yield pooled
        finally:
            pooled.users -= 1
            if pooled.is_retired and not pooled.users:
                self._leave(pooled)
            self._keep_within_capacity()

    async def load(self, name: AdapterName, path: str | None = None) -> None:
        """Have the adapter in the engine, at its newest version, whatever was tried before.

        Raises:
            ModelNotFoundError, RequestError, UnavailableError: as `AdapterStore.have`.
        """
        self._failures.pop((str(name), path), None)
        await asyncio.shield(self._load_once(name, path))

    def drop(self, name: str) -> None:
        """Take the adapter out of the engine as soon as nobody uses it."""
        if pooled := self._adapters.pop(name, None):
            self._retire(pooled)

    async def _ready(self, name: AdapterName, path: str | None) -> PooledAdapter:
        pooled = self._adapters.get(str(name))
        if pooled is not None and pooled.path == path:
            self._adapters.move_to_end(str(name))
            if time.monotonic() - pooled.checked_at > self._refresh_s:
                # The request does not wait: it takes the version that is there.
                pooled.checked_at = time.monotonic()
                self._load_once(name, path)
            return pooled
        if failure := self._failure((str(name), path)):
            # Else it would gather the frames of all who were told.
            raise failure.with_traceback(None)
        # Others may wait for the same adapter: a client that leaves must not take it from them.
        return await asyncio.shield(self._load_once(name, path))

    def _load_once(self, name: AdapterName, path: str | None) -> asyncio.Task[PooledAdapter]:
        key = (str(name), path)
        if key not in self._loading:
            task = self._loading[key] = asyncio.create_task(self._load(name, path))
            task.add_done_callback(lambda task: self._loaded(key, task))
        return self._loading[key]

    async def _load(self, name: AdapterName, path: str | None) -> PooledAdapter:
        files = await asyncio.to_thread(self._store.have, name, path)
        current = self._adapters.get(str(name))
        if current is not None and current.path == path and current.files.version == files.version:
            node_cache().release(files.entry)
            current.checked_at = time.monotonic()
            return current
        try:
            plan = self._plan(name, files)
            loaded = await self._engine.add(str(name), f"{name}@{files.version}", files.folder)
        except BaseException:
            node_cache().release(files.entry)
            raise
        pooled = PooledAdapter(name, path, files, plan, loaded, is_expected_until=time.monotonic() + _EXPECTED_S)
        if current := self._adapters.get(str(name)):
            logger.info("The adapter `%s` changed; its new version answers from now on.", name)
            self._retire(current)
        self._adapters[str(name)] = pooled
        self._adapters.move_to_end(str(name))
        return pooled

    def _loaded(self, key: tuple[str, str | None], task: asyncio.Task[PooledAdapter]) -> None:
        del self._loading[key]
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, RayLLMError):
            return
        pooled = self._adapters.get(key[0])
        if pooled is None or pooled.path != key[1]:
            self._failures[key] = (error, time.monotonic())
            while len(self._failures) > _MOST_FAILURES:
                self._failures.popitem(last=False)
        elif isinstance(error, ModelNotFoundError):
            self.drop(key[0])
        elif isinstance(error, RequestError | UnavailableError):
            logger.warning("The adapter `%s` stays at its version: %s", key[0], error.message)

    def _failure(self, key: tuple[str, str | None]) -> RayLLMError | None:
        error, at = self._failures.get(key, (None, 0.0))
        return error if time.monotonic() - at < self._forget_s else None

    def _keep_within_capacity(self) -> None:
        surplus = len(self._adapters) - self._capacity
        now = time.monotonic()
        idle = [name for name, r in self._adapters.items() if not r.users and r.is_expected_until < now]
        for name in idle[: max(0, surplus)]:
            self.drop(name)

    def _retire(self, pooled: PooledAdapter) -> None:
        pooled.is_retired = True
        if not pooled.users:
            self._leave(pooled)

    def _leave(self, pooled: PooledAdapter) -> None:
        async def leave() -> None:
            await self._engine.remove(pooled.loaded)
            node_cache().release(pooled.files.entry)

        task = asyncio.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
