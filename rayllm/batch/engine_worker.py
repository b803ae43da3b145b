"""An engine in a worker of a job: the one that serves, without its HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import ceil

from rayllm.batch.row_loop import RowLoop
from rayllm.batch.rows import BrokenWorkerError, Row
from rayllm.cluster.gpu_group import configure_on_gpu
from rayllm.config import ModelConfig
from rayllm.engine.adapters.setup import MAX_STOPS
from rayllm.engine.arguments import Workers
from rayllm.engine.server import EngineServer
from rayllm.engine.vllm.environment import prepare_environment
from rayllm.errors import EngineError
from rayllm.observability.logs import set_up_logging
from rayllm.settings import settings
from rayllm.sources import fetch

_SIGN_OF_LIFE_S = 60.0
_STOP_S = 30.0


class EngineWorker:
    """Starts the engine, and keeps so many rows in it that it is never idle.

    Args:
        model: the model.
        workers: where the engine's own workers are.
        gpu_share: the part of a GPU that each of them has, where Ray places them.
        max_pending: rows in the engine at once; None is a tenth more than it works on.

    Raises:
        RayLLMError: the model cannot be had, or vLLM refuses its configuration.
    """

    def __init__(self, model: ModelConfig, workers: Workers, gpu_share: float, max_pending: int | None) -> None:
        set_up_logging(settings().log_level)
        stops = len(model.generation_config.stopping_sequences)
        prepare_environment(max(stops, MAX_STOPS) if model.lora_config else stops, gpu_share)
        self._rows = RowLoop()
        model = _without_statistics(model)
        self.server = EngineServer(model)
        self._rows.call(self._start(model, workers))
        self._rows.open_window(max_pending or ceil(1.1 * self.server.in_process.max_concurrent))

    async def _start(self, model: ModelConfig, workers: Workers) -> None:
        loading = model.model_loading_config
        # Workers on other nodes look for the weights where they lie on this one.
        on_other_nodes = workers == "ray"
        weights = model.streamed_from
        if weights is None:
            what = (model.source, model.model_id, loading.allow_pickle_weights)
            weights = str((await asyncio.to_thread(fetch, *what, in_cache=on_other_nodes)).folder)
        tokenizer = None
        if source := loading.tokenizer_source:
            tokenizer = (await asyncio.to_thread(fetch, source, model.model_id, weights=False)).folder
        configure = configure_on_gpu if workers == "ray" else None
        async with asyncio.timeout(settings().engine_start_timeout_s):
            await self.server.start(weights, tokenizer, configure, workers=workers)

    def close(self) -> None:
        """Stop the engine. No row is in it any more."""
        self._rows.call(self.server.stop(timeout_s=1), _STOP_S)

    def map(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        """What `work` makes of each row, as `RowLoop.map`.

        Raises:
            BrokenWorkerError: the engine has died.
        """

        async def watched(row: Row) -> Row:
            try:
                return await work(row)
            except EngineError:
                await self.check()
                raise

        return self._rows.map(watched, rows)

    async def check(self) -> None:
        """Make sure that the engine lives.

        Raises:
            BrokenWorkerError: it does not.
        """
        try:
            await self.server.check(_SIGN_OF_LIFE_S)
        except EngineError as error:
            raise BrokenWorkerError(error.message) from None


def _without_statistics(model: ModelConfig) -> ModelConfig:
    """The model with an engine that keeps none, unless it is told to: nobody reads them here."""
    return model.model_copy(update={"engine_kwargs": {"disable_log_stats": True, **model.engine_kwargs}})
