"""One replica of one model: a Ray Serve deployment that holds an engine and serves it over HTTP to lease holders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import ray
import uvicorn

from rayllm.config import ModelConfig
from rayllm.engine.server import EngineServer
from rayllm.engine.vllm import prepare_environment
from rayllm.errors import EngineError
from rayllm.observability.logs import set_up_logging
from rayllm.serving.gpu_group import configure_on_gpu, fetch_on_other_nodes
from rayllm.serving.lease import LeaseGate, Leases
from rayllm.settings import settings

logger = logging.getLogger(__name__)


class ModelReplica:
    """Holds the engine, says where it listens, and answers for its health.

    Args:
        model: the model.
        aliases: more names that the model answers to.
        gpu_share: the part of a GPU that each engine worker has in its bundle of this replica's placement group; 0 for
            workers on the CPU.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, model: ModelConfig, aliases: tuple[str, ...], gpu_share: float
    ) -> None:
        set_up_logging(settings().log_level)
        self._model = model
        self._leases = Leases()
        self._engine = EngineServer(model, aliases)
        prepare_environment(len(model.generation_config.stopping_sequences), gpu_share)
        try:
            async with asyncio.timeout(settings().engine_start_timeout_s):
                if gpu_share:
                    await asyncio.to_thread(fetch_on_other_nodes, model)
                host = ray.util.get_node_ip_address() if gpu_share else "127.0.0.1"
                await self._engine.start(configure_on_gpu if gpu_share else None, host)
        except TimeoutError:
            raise EngineError(
                f"model `{model.model_id}` was not ready within {settings().engine_start_timeout_s:g} s; "
                "raise RAYLLM_ENGINE_START_TIMEOUT_S if its weights take longer."
            ) from None
        await self._listen()

    async def _listen(self) -> None:
        host = ray.util.get_node_ip_address()
        config = uvicorn.Config(
            LeaseGate(self._engine.app, self._leases),
            host=host,
            port=0,
            log_level="warning",
            access_log=False,
            lifespan="off",
            # Routers keep their connections; Serve's drain decides when they end.
            timeout_keep_alive=3600,
        )
        self._http = _Server(config)
        self._serving = asyncio.create_task(self._http.serve())
        while not self._http.started:
            if self._serving.done():
                await self._serving
                raise EngineError(f"model `{self._model.model_id}`: its HTTP server stopped while it was starting.")
            await asyncio.sleep(0.01)
        port = self._http.servers[0].sockets[0].getsockname()[1]
        self._address = f"http://{host}:{port}"

    async def lease(self, lease_id: str) -> AsyncIterator[str]:
        """Hold one request slot: yields the address to use, and ends when the exchange has ended."""
        async with self._leases.hold(lease_id) as lease:
            yield self._address
            await lease.finished()

    async def describe(self) -> dict[str, Any]:
        """What the router tells clients about the model."""
        return self._engine.describe()

    async def unfinished_requests(self) -> int:
        """Requests in the engine now: for tests and operators."""
        return self._engine.unfinished_requests()

    async def check_health(self) -> None:
        """Ray Serve's health check.

        Raises:
            EngineError: the engine or the HTTP server is gone, or the engine hangs.
        """
        if self._serving.done():
            raise EngineError(f"model `{self._model.model_id}`: the replica's HTTP server stopped.")
        await self._engine.check(0.8 * self._model.deployment_config.health_check_timeout_s)

    async def __del__(self) -> None:
        """Ray Serve calls and awaits this when the replica has finished its last request."""
        if hasattr(self, "_http"):
            self._http.should_exit = True
            await asyncio.wait([self._serving], timeout=5)
        await self._engine.stop(timeout_s=5)


class _Server(uvicorn.Server):
    """Uvicorn inside another process: signals are Ray's."""

    def install_signal_handlers(self) -> None:
        pass

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()
