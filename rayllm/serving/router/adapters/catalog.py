"""The available adapters for `GET /v1/models`, refreshed in the background."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from rayllm.core.errors import RayLLMError
from rayllm.lora import Adapter
from rayllm.serving.cluster.background import in_background

logger = logging.getLogger(__name__)

# Seconds that `GET /v1/models` waits for models whose adapters have never been listed.
_FIRST_S = 10.0
# The same after a failed listing: the adapters' source may be unreachable for long.
_AGAIN_S = 1.0
# Seconds before a failed listing is repeated.
_RETRY_S = 5.0

ListAdapters = Callable[[str], Awaitable[list[str] | None]]
"""Returns the names of a model's adapters; None if they cannot be listed now."""


class AdapterCatalog:
    """The available adapters of many models."""

    def __init__(self, model_ids: Collection[str], list_adapters: ListAdapters, max_age_s: float = 30.0) -> None:
        self._model_ids = model_ids
        self._list_adapters = list_adapters
        self._max_age_s = max_age_s
        self._adapters: dict[str, list[Adapter]] = {}
        self._refresh_at: dict[str, float] = {}
        self._listing: dict[str, asyncio.Task[None]] = {}

    async def adapters(self) -> list[Adapter]:
        """All available adapters. Waits, briefly, only for models whose adapters have never been listed."""
        now = time.monotonic()
        for model_id in self._model_ids:
            if now >= self._refresh_at.get(model_id, 0.0) and model_id not in self._listing:
                self._listing[model_id] = in_background(self._refresh(model_id))
        if never_listed := [model_id for model_id in self._listing if model_id not in self._adapters]:
            is_first = any(model_id not in self._refresh_at for model_id in never_listed)
            tasks = [self._listing[model_id] for model_id in never_listed]
            await asyncio.wait(tasks, timeout=_FIRST_S if is_first else _AGAIN_S)
        return [adapter for model_id in self._model_ids for adapter in self._adapters.get(model_id, [])]

    async def _refresh(self, model_id: str) -> None:
        names = None
        try:
            names = await self._list_adapters(model_id)
        except RayLLMError as error:
            logger.warning("The adapters of `%s` cannot be listed: %s", model_id, error.message)
        finally:
            # A failed listing keeps the previous one.
            if names is not None:
                self._adapters[model_id] = [Adapter(model_id, name) for name in names]
            self._refresh_at[model_id] = time.monotonic() + (_RETRY_S if names is None else self._max_age_s)
            del self._listing[model_id]
