"""Adapters that an administrator loaded by name (`/v1/load_lora_adapter`), known to all routers and replicas."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

from ray.exceptions import RayError

from rayllm.errors import UnavailableError
from rayllm.serving.cluster.state.detached_actor import DetachedActor, detached_actor

_ACTOR = "rayllm-loaded-adapters"
_ANSWER_S = 10.0
# Requests wait while the actor is asked; they had better go by what was known before than wait longer.
_REQUESTS_WAIT_S = 2.0
# What one router was told, the others know after so many seconds.
_MAX_AGE_S = 1.0
# An actor that did not answer is left alone for so long.
_REST_S = 10.0


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter with the base model it is for, its name without the base's, and its place."""

    base: str
    adapter: str
    path: str


class Ledger(DetachedActor):
    """What is loaded, by application and by the name that clients use. Runs in one actor of the cluster."""

    def __init__(self, version: str = "") -> None:
        super().__init__(version)
        self._loaded: dict[str, dict[str, LoadedAdapter]] = {}

    def put(self, app: str, entries: dict[str, LoadedAdapter]) -> None:
        """These are loaded as well."""
        self.check_open()
        self._loaded.setdefault(app, {}).update(entries)

    def drop(self, app: str, name: str) -> None:
        """This one is loaded no more."""
        self.check_open()
        self._loaded.get(app, {}).pop(name, None)

    def of(self, app: str) -> dict[str, LoadedAdapter] | None:
        """What is loaded; None where nothing was ever said: the actor may be new."""
        return self._loaded.get(app)

    def state(self) -> dict[str, Any]:
        """What is loaded."""
        return {
            app: {name: asdict(loaded) for name, loaded in entries.items()} for app, entries in self._loaded.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """This is loaded as well, unless something else has taken the name."""
        for app, entries in state.items():
            kept = {name: LoadedAdapter(**fields) for name, fields in entries.items()}
            self._loaded[app] = kept | self._loaded.get(app, {})


class AdapterRegistry:
    """What is loaded in one application.

    Args:
        app: the application's name.
    """

    def __init__(self, app: str) -> None:
        self._app = app
        self._known: dict[str, LoadedAdapter] = {}
        self._has_answered = False
        self._next_at = float("-inf")
        self._asking = asyncio.Lock()

    async def all(self) -> dict[str, LoadedAdapter]:
        """By the name that clients use; at most a second old, unless the ledger does not answer.

        Raises:
            UnavailableError: the ledger does not answer, and never did.
        """
        async with self._asking:
            if time.monotonic() >= self._next_at:
                await self._ask()
        return self._known

    async def add(self, name: str, loaded: LoadedAdapter) -> None:
        """From now on `name` means this adapter.

        Raises:
            UnavailableError: the ledger does not answer.
        """
        await self._call("put", {name: loaded})
        self._known = {**self._known, name: loaded}

    async def remove(self, name: str) -> None:
        """From now on `name` means nothing.

        Raises:
            UnavailableError: the ledger does not answer.
        """
        await self._call("drop", name)
        self._known = {known: loaded for known, loaded in self._known.items() if known != name}

    async def _ask(self) -> None:
        try:
            found = await self._call("of", timeout_s=_REQUESTS_WAIT_S if self._has_answered else _ANSWER_S)
            if found is None and self._known:
                # The actor died and was started anew: it learns from those who remember.
                await self._call("put", self._known)
                found = self._known
        except UnavailableError:
            if not self._has_answered:
                raise
            self._next_at = time.monotonic() + _REST_S
            return
        self._known = found or {}
        self._has_answered = True
        self._next_at = time.monotonic() + _MAX_AGE_S

    async def _call(self, method: str, *args: Any, timeout_s: float = _ANSWER_S) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                # In a thread, since it asks Ray.
                ledger = await asyncio.to_thread(_ledger)
                return await getattr(ledger, method).remote(self._app, *args)
        except (RayError, TimeoutError):
            raise UnavailableError("The ledger of loaded adapters does not answer.", None, None, 5) from None


def _ledger() -> Any:
    return detached_actor(Ledger, _ACTOR)
