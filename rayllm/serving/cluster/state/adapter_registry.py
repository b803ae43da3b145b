"""The adapters that administrators have registered (`/v1/load_lora_adapter`), shared by all routers and replicas."""

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ray.exceptions import RayError

from rayllm.core.errors import UnavailableError
from rayllm.lora import Adapter
from rayllm.serving.cluster.state.detached_actor import DetachedActor, detached_actor

_ACTOR = "rayllm-loaded-adapters"
_TIMEOUT_S = 10.0
# Requests wait for this call; they use the last known state rather than wait longer.
_REFRESH_TIMEOUT_S = 2.0
# Seconds after which other processes see a change.
_MAX_AGE_S = 1.0
# Seconds between attempts to reach an unresponsive actor.
_RETRY_S = 10.0


@dataclass(frozen=True)
class RegisteredAdapter:
    """An `Adapter` on its way to the actor and back.

    Processes of several versions of RayLLM share the actor, so this class and its fields keep their names.
    """

    base: str
    adapter: str
    path: str


class AdapterRegistryActor(DetachedActor):
    """The registered adapters by application and by the name that clients use. One detached actor of the cluster."""

    def __init__(self, version: str = "") -> None:
        super().__init__(version)
        self._registered: dict[str, dict[str, RegisteredAdapter]] = {}

    def put(self, app: str, entries: dict[str, RegisteredAdapter]) -> None:
        self.check_open()
        self._registered.setdefault(app, {}).update(entries)

    def drop(self, app: str, name: str) -> None:
        self.check_open()
        self._registered.get(app, {}).pop(name, None)

    def of(self, app: str) -> dict[str, RegisteredAdapter] | None:
        """The entries of an application; None if the application never had any: the actor may be new."""
        return self._registered.get(app)

    def state(self) -> dict[str, Any]:
        """All entries, as plain containers."""
        return {app: {name: asdict(entry) for name, entry in all_.items()} for app, all_ in self._registered.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Add entries, unless their names are in use by now."""
        for app, entries in state.items():
            kept = {name: RegisteredAdapter(**fields) for name, fields in entries.items()}
            self._registered[app] = kept | self._registered.get(app, {})


class AdapterRegistry:
    """The registered adapters of one application, cached for a second."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._cache: dict[str, Adapter] = {}
        self._has_answered = False
        self._refresh_at = float("-inf")
        self._refresh_lock = asyncio.Lock()

    async def all(self) -> dict[str, Adapter]:
        """The adapters by the names that clients use. Raises UnavailableError if the actor has never answered."""
        async with self._refresh_lock:
            if time.monotonic() >= self._refresh_at:
                await self._refresh()
        return self._cache

    async def prepare(self) -> None:
        """Ask the actor ahead of the first request, which then gets the last known state if the actor is down."""
        with suppress(UnavailableError):
            await self.all()

    async def add(self, name: str, adapter: Adapter) -> None:
        """Register an adapter. Raises UnavailableError if the actor does not answer."""
        await self._put({name: adapter})
        self._cache = {**self._cache, name: adapter}

    async def remove(self, name: str) -> None:
        """Unregister an adapter. Raises UnavailableError if the actor does not answer."""
        await self._call("drop", name)
        self._cache = {known: adapter for known, adapter in self._cache.items() if known != name}

    async def _refresh(self) -> None:
        try:
            entries = await self._call("of", timeout_s=_REFRESH_TIMEOUT_S if self._has_answered else _TIMEOUT_S)
            if entries is None and self._cache:
                # The actor was restarted without its state: restore it from this cache.
                await self._put(self._cache)
            else:
                entries = entries or {}
                self._cache = {name: Adapter(known.base, known.adapter, known.path) for name, known in entries.items()}
        except UnavailableError:
            if not self._has_answered:
                raise
            self._refresh_at = time.monotonic() + _RETRY_S
            return
        self._has_answered = True
        self._refresh_at = time.monotonic() + _MAX_AGE_S

    async def _put(self, adapters: dict[str, Adapter]) -> None:
        entries = {name: RegisteredAdapter(a.base, a.name, a.source) for name, a in adapters.items()}
        await self._call("put", entries)

    async def _call(self, method: str, *args: Any, timeout_s: float = _TIMEOUT_S) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                # Finding the actor blocks.
                actor = await asyncio.to_thread(detached_actor, AdapterRegistryActor, _ACTOR)
                return await getattr(actor, method).remote(self._app, *args)
        except (RayError, TimeoutError):
            raise UnavailableError("The registry of adapters does not answer; try again.", None, None, 5) from None
