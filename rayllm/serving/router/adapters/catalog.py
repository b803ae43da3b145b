"""Which adapters there are to be had, as `GET /v1/models` tells; asked for in the background, never on the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from rayllm.errors import RayLLMError
from rayllm.lora import AdapterName
from rayllm.serving.cluster.background import in_background

logger = logging.getLogger(__name__)

# `GET /v1/models` waits so long for models whose adapters were never listed.
_FIRST_S = 10.0
# Where they could not be told the first time, it is hardly waited again: their place may be in trouble for long.
_AGAIN_S = 1.0
# And is told again so soon where there was no answer.
_RETRY_S = 5.0

ListAdapters = Callable[[str], Awaitable[list[str] | None]]
"""Gives the names of a model's adapters, without the base's; None where nobody can tell now."""


class AdapterCatalog:
    """The adapters of many models.

    Args:
        model_ids: the models that find adapters by themselves.
        ask: asks a replica.
        max_age_s: seconds after which a model is asked again.
    """

    def __init__(self, model_ids: Collection[str], ask: ListAdapters, max_age_s: float = 30.0) -> None:
        self._model_ids = model_ids
        self._ask = ask
        self._max_age_s = max_age_s
        self._names: dict[str, list[AdapterName]] = {}
        self._next_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def names(self) -> list[AdapterName]:
        """Every adapter that was found. Waits only for models that never answered, and not long."""
        now = time.monotonic()
        for model_id in self._model_ids:
            if now >= self._next_at.get(model_id, 0.0) and model_id not in self._asking:
                self._asking[model_id] = in_background(self._learn(model_id))
        if unknown := [model_id for model_id in self._asking if model_id not in self._names]:
            is_first = any(model_id not in self._next_at for model_id in unknown)
            tasks = [self._asking[model_id] for model_id in unknown]
            await asyncio.wait(tasks, timeout=_FIRST_S if is_first else _AGAIN_S)
        return [name for model_id in self._model_ids for name in self._names.get(model_id, [])]

    async def _learn(self, model_id: str) -> None:
        found = None
        try:
            found = await self._ask(model_id)
        except RayLLMError as error:
            logger.warning("The adapters of `%s` cannot be listed: %s", model_id, error.message)
        finally:
            # What was found before still counts where there is no answer.
            if found is not None:
                self._names[model_id] = [AdapterName(model_id, adapter) for adapter in found]
            self._next_at[model_id] = time.monotonic() + (_RETRY_S if found is None else self._max_age_s)
            del self._asking[model_id]
