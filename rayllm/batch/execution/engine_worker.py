"""The serving engine inside a batch worker, without its HTTP server."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import ceil

import ray

from rayllm.batch.execution.row_loop import RowLoop
from rayllm.batch.rows import BrokenWorkerError, Row
from rayllm.cluster.gpu_group import call_on_other_nodes, configure_on_gpu, start_in_turn
from rayllm.config import ModelConfig
from rayllm.core.errors import EngineError
from rayllm.core.logs import set_up_logging
from rayllm.core.settings import settings
from rayllm.engine.adapters.setup import MAX_STOPS
from rayllm.engine.arguments import Workers, check_optional_packages
from rayllm.engine.cpu import check_cpu_limits
from rayllm.engine.server import EngineServer
from rayllm.engine.vllm.environment import prepare_environment
from rayllm.plan.cores import Neighbors
from rayllm.sources import fetch

_HEALTH_CHECK_S = 60.0
_STOP_S = 30.0


class EngineWorker:
    """An engine in this process, and the loop that feeds it rows.

    Args:
        workers: where the engine's own workers run.
        gpu_share: share of a GPU for each worker; 0 on CPUs.
        max_pending: rows in the engine at once; None is 10 % more than run concurrently.
        engines: engines of the job, which share the cores if they run on CPUs.

    Raises:
        RayLLMError: the model cannot be fetched, or vLLM refuses its configuration.
    """

    def __init__(
        self,
        model: ModelConfig,
        workers: Workers,
        gpu_share: float = 0.0,
        max_pending: int | None = None,
        engines: int = 1,
    ) -> None:
        set_up_logging(settings().log_level)
        stops = len(model.generation_config.stopping_sequences)
        prepare_environment(max(stops, MAX_STOPS) if model.lora_config else stops, gpu_share)
        self._rows = RowLoop()
        # By default no stats, which nothing reads here.
        model = model.model_copy(update={"engine_kwargs": {"disable_log_stats": True, **model.engine_kwargs}})
        self.server = EngineServer(model)
        # Of a share of a GPU; an engine that spans nodes has whole ones.
        shared = ray.get_runtime_context().get_accelerator_ids()["GPU"] if 0 < gpu_share < 1 else ()
        self._rows.call(self._start(model, workers, Neighbors(engines), shared))
        self._rows.limit(max_pending or ceil(1.1 * self.server.in_process.max_concurrent))

    async def _start(
        self, model: ModelConfig, workers: Workers, neighbors: Neighbors, shared_gpus: Sequence[str]
    ) -> None:
        if workers == "cpu":
            check_cpu_limits(model)
        check_optional_packages(model)
        loading = model.model_loading_config
        is_distributed = workers == "ray"
        weights = model.streamed_from
        if weights is None:
            source = (model.source, model.model_id, loading.allow_pickle_weights)
            # Workers on other nodes expect the weights at the same path.
            weights = str((await asyncio.to_thread(fetch, *source, in_cache=is_distributed)).folder)
        tokenizer = None
        if tokenizer_source := loading.tokenizer_source:
            tokenizer = (await asyncio.to_thread(fetch, tokenizer_source, model.model_id, weights=False)).folder
        configure = configure_on_gpu if is_distributed else None
        start = partial(self.server.start, on_other_nodes=call_on_other_nodes, workers=workers, neighbors=neighbors)
        async with asyncio.timeout(settings().engine_start_timeout_s), start_in_turn(shared_gpus):
            await start(weights, tokenizer, configure)

    def close(self) -> None:
        """Stop the engine, after its last row."""
        self._rows.call(self.server.stop(timeout_s=1), _STOP_S)

    def map(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        """Apply `work` to each row, as `RowLoop.map` does. Raises BrokenWorkerError if the engine has died."""

        async def checked(row: Row) -> Row:
            try:
                return await work(row)
            except EngineError:
                await self.check()
                raise

        return self._rows.map(checked, rows)

    async def check(self) -> None:
        """Check the engine's health. Raises BrokenWorkerError if the engine has died."""
        try:
            await self.server.check(_HEALTH_CHECK_S)
        except EngineError as error:
            raise BrokenWorkerError(error.message) from None
