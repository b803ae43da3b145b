"""Adapters on their way into the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.engine.layers.names import asked_name
from rayllm.engine.layers.refusal import refuse
from rayllm.errors import ModelNotFoundError, RayLLMError
from rayllm.lora import AdapterFolder, AdapterName, parse_name


class Adapters:
    """Which adapters the engine may load, and whence.

    Args:
        folder: where they lie.
        base: id of the base model.
    """

    def __init__(self, folder: AdapterFolder, base: str) -> None:
        self._folder = folder
        self._base = base

    def parse(self, name: str) -> AdapterName | None:
        """The adapter that `name` means, or None for the base itself."""
        return parse_name(name, [self._base])

    async def locate(self, name: str) -> Path | None:
        """The folder that vLLM is to load for the model name `name`; what vLLM's resolver asks."""
        adapter = self.parse(name)
        return await asyncio.to_thread(self._folder.find, adapter) if adapter else None

    async def check(self, name: AdapterName) -> None:
        """Refuse what cannot be loaded, before vLLM sees the name.

        vLLM keeps a lock for ever for each name that it was asked to resolve, so unknown names must not get there.

        Raises:
            ModelNotFoundError: there is no such adapter.
            RequestError: it is broken.
        """
        found = await asyncio.to_thread(self._folder.find, name)
        if found is None:
            raise ModelNotFoundError(f"The model `{self._base}` has no adapter `{name.adapter}`.", "model")
        await asyncio.to_thread(self._folder.check, name, found)


class AdapterGate:
    """ASGI middleware that answers requests for adapters that cannot be had."""

    def __init__(self, app: ASGIApp, adapters: Adapters) -> None:
        self._app = app
        self._adapters = adapters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._adapters.parse(asked_name() or "")
        if name is not None:
            try:
                await self._adapters.check(name)
            except RayLLMError as error:
                await refuse(send, error, scope["path"])
                return
        await self._app(scope, receive, send)
