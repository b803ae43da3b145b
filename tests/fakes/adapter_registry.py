"""The registry of adapters, without a cluster."""

from __future__ import annotations

from rayllm.lora import Adapter


class AdapterRegistry:
    """Adapters that administrators have added."""

    def __init__(self) -> None:
        self.known: dict[str, Adapter] = {}

    async def all(self) -> dict[str, Adapter]:
        return dict(self.known)

    async def add(self, name: str, adapter: Adapter) -> None:
        self.known[name] = adapter

    async def remove(self, name: str) -> None:
        del self.known[name]
