"""One replica of one model: a Ray Serve deployment that runs an engine and serves it to routers."""

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import serve

from rayllm.access.usage_ledger import UsageLedger
from rayllm.cluster.gpu_group import call_on_other_nodes, configure_on_gpu, start_in_turn, take_gpus
from rayllm.config import ModelConfig
from rayllm.core.errors import EngineError, SourceError, UnavailableError
from rayllm.core.logs import set_up_logging
from rayllm.core.settings import settings
from rayllm.engine.adapters.setup import MAX_STOPS
from rayllm.engine.arguments import check_optional_packages
from rayllm.engine.cpu import check_cpu_limits
from rayllm.engine.process.watchdog import wait_until_lost
from rayllm.engine.server import EngineServer
from rayllm.engine.vllm.environment import prepare_environment
from rayllm.plan.cores import Neighbors
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.cluster.state.start_progress import StartProgress
from rayllm.serving.http.uvicorn_server import replica_server
from rayllm.serving.replica.drain import DrainGate, drain, drain_on_sigterm, end_process
from rayllm.serving.replica.metrics import ReplicaMetrics
from rayllm.serving.replica.middleware import RouterGate, SlotGate
from rayllm.serving.replica.slots import ServeRequestCount, Slots
from rayllm.serving.replica.usage_meter import UsageMeter
from rayllm.serving.replica.weights import ReplicaWeights
from rayllm.serving.wire.handover.receiver import Receiver
from rayllm.serving.wire.relay.reply import RelayedReplyMiddleware
from rayllm.sources import node_cache

logger = logging.getLogger(__name__)

# Seconds that requests get to end after the engine has died: their errors only have to be sent.
_LAST_EVENTS_S = 2.0
# Seconds for the last upload of usage; what is left is uploaded by another process of the node.
_LAST_UPLOAD_S = 10.0


class ModelReplica:
    """Runs the engine, publishes its address, and reports its health.

    Args:
        gpu_share: the share of a GPU that each engine worker has in its bundle of the placement group; 0 for workers on
            the CPU.
        neighbors: the engines on CPUs that share the cores with the first replica of this model.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, model: ModelConfig, aliases: tuple[str, ...], gpu_share: float, neighbors: Neighbors
    ) -> None:
        set_up_logging(settings().log_level)
        self._model = model
        context = serve.get_replica_context()
        self._neighbors = replace(neighbors, index=(neighbors.index + context.rank.rank) % neighbors.engines)
        self._check_timeout_s = model.deployment_config.health_check_timeout_s
        self._drain_timeout_s = model.deployment_config.graceful_shutdown_timeout_s
        self._slots = Slots(ServeRequestCount(), self._is_saturated)
        self._key = secrets.token_hex()
        self._engine = EngineServer(model, aliases)
        self._weights = ReplicaWeights(model)
        start_progress = StartProgress(context.replica_id.unique_id, context.app_name, model.model_id)
        self._metrics = ReplicaMetrics(model.model_id, start_progress)
        self._adapter_registry = AdapterRegistry(context.app_name)
        stops = len(model.generation_config.stopping_sequences)
        prepare_environment(max(stops, MAX_STOPS) if model.lora_config else stops, gpu_share)
        try:
            async with asyncio.timeout(settings().engine_start_timeout_s):
                await self._start(gpu_share)
        except TimeoutError:
            raise EngineError(
                f"model `{model.model_id}` was not ready within {settings().engine_start_timeout_s:g} s; "
                "raise RAYLLM_ENGINE_START_TIMEOUT_S if its weights take longer."
            ) from None
        self._watching = asyncio.create_task(self._watch())
        loop = asyncio.get_running_loop()
        drain_on_sigterm(partial(loop.call_soon_threadsafe, self._start_draining))
        logger.info("Model `%s` is ready.", model.model_id)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply what may change while the engine runs: called by Ray Serve at start and on every change."""
        self._check_timeout_s = user_config["health_check_timeout_s"]
        usage = user_config.get("usage")
        app_name = serve.get_replica_context().app_name
        self._usage_meter.write_to(UsageLedger.for_application(usage["folder"], app_name) if usage else None)

    async def _start(self, gpu_share: float) -> None:
        metrics = self._metrics
        host = ray.util.get_node_ip_address()
        if not gpu_share:
            check_cpu_limits(self._model)
        check_optional_packages(self._model)
        with metrics.phase("fetch"):
            folder, tokenizer = await self._weights.fetch(metrics.new_progress(), on_other_nodes=bool(gpu_share))
        with metrics.phase("load"):
            start = partial(self._engine.start, folder, tokenizer, progress=metrics.new_progress)
            if not gpu_share:
                await start(neighbors=self._neighbors)
            elif (gpus := await asyncio.to_thread(take_gpus)) is None:
                await start(configure_on_gpu, host=host, workers="ray", on_other_nodes=call_on_other_nodes)
            else:
                async with start_in_turn(gpus if gpu_share < 1 else ()):
                    await start(host=host, workers="gpu")
            await self._listen(host)
        with metrics.phase("warm_up"):
            await self._engine.warm_up()

    async def _listen(self, host: str) -> None:
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._usage_meter = UsageMeter(self._engine.app, self._model.model_id, replica_id)
        self._gate = DrainGate(SlotGate(self._usage_meter, self._slots), lambda: self._engine.has_died)
        self._receiver = Receiver(self._gate)
        self._receiver.start()
        self._slots.on_slot_freed = self._receiver.notify_slot_free
        # For routers that send requests by HTTP.
        labels = {"model": self._model.model_id, "replica": replica_id}
        app = RouterGate(RelayedReplyMiddleware(self._gate), self._key, self._engine.adapter_pool, labels)
        self._http = replica_server(app, host)
        self._serving = asyncio.create_task(self._http.serve())
        while not self._http.started:
            if self._serving.done():
                await self._serving
                raise EngineError(f"model `{self._model.model_id}`: its HTTP server stopped while it was starting.")
            await asyncio.sleep(0.01)
        port = self._http.servers[0].sockets[0].getsockname()[1]
        self._address = f"http://{host}:{port}"

    async def record_replica_metadata(self) -> dict[str, Any]:
        """How routers reach this replica. Ray Serve asks once, and passes it on to them."""
        return {
            "address": self._address,
            "key": self._key,
            "socket": str(self._receiver.path),
            "node_id": ray.get_runtime_context().get_node_id(),
        }

    async def record_routing_stats(self) -> dict[str, Any]:
        """Load and loaded adapters, for routing. Ray Serve asks every second, and passes them on to the routers."""
        adapter_pool = self._engine.adapter_pool
        return {
            "work": self._slots.work,
            "adapters": [name.rpartition(":")[2] for name in adapter_pool.loaded_adapters] if adapter_pool else [],
            "slots": self._model.lora_config.max_num_adapters_per_replica if self._model.lora_config else 0,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Load for the autoscaling policy; Ray Serve asks periodically."""
        return {"ongoing": self._slots.taken, **self._engine.load()}

    def _is_saturated(self) -> bool:
        """Whether enough prompts wait in the engine: further requests wait, in order, at the routers."""
        limit = self._engine.prompt_backlog
        if autoscaling := self._model.deployment_config.autoscaling_config:
            # What is queued here has new replicas started.
            limit = max(limit, 2 * int(autoscaling.target_queued_tokens or 0))
        return self._slots.work > limit and self._engine.queued_tokens() >= limit

    async def describe(self) -> dict[str, Any]:
        """Facts about the model for clients, and about the replica for operators."""
        return {
            **self._engine.describe(),
            "replica": serve.get_replica_context().replica_id.unique_id,
            "weights": self._weights.version.snapshot,
        }

    async def report(self) -> dict[str, Any]:
        """Current figures for `rayllm status`; see `rayllm.serving.cluster.status_report`."""
        return {
            "replica": serve.get_replica_context().replica_id.unique_id,
            "ongoing": self._slots.taken,
            "kv_use": self._engine.load()["kv_use"],
            "generated_tokens": self._engine.generated_tokens(),
            "adapters": self._engine.adapter_pool.loaded_adapters if self._engine.adapter_pool else [],
            "compute": self._engine.compute,
            "phases": self._metrics.phases,
        }

    async def adapters(self) -> list[str] | None:
        """Names of the available adapters; None if the adapters cannot be listed now."""
        if self._engine.adapter_pool is None:
            return []
        try:
            return [adapter.name for adapter in await self._engine.adapter_pool.available()]
        except SourceError as error:
            logger.warning("The adapters of `%s` cannot be listed: %s", self._model.model_id, error.message)
            return None

    async def unfinished_requests(self) -> int:
        """Number of requests in the engine."""
        return self._engine.unfinished_requests()

    async def check_health(self) -> None:
        """Ray Serve's health check. Raises EngineError if the engine, the HTTP server or the watchdog has stopped.

        An engine must answer if it has no requests. With requests, a step may take long, and the watchdog tells whether
        the engine hangs.
        """
        for what, has_stopped in (
            ("HTTP server", self._serving.done()),
            ("watchdog", self._watching.done()),
            ("engine", self._engine.has_died),
        ):
            if has_stopped:
                raise EngineError(f"model `{self._model.model_id}`: the replica's {what} stopped.")
        adapters = self._engine.adapter_pool.loaded_adapters if self._engine.adapter_pool else ()
        self._metrics.export(len(adapters), await asyncio.to_thread(node_cache().size))
        await self._drop_unregistered()
        if not self._engine.unfinished_requests():
            await self._engine.check(0.8 * self._check_timeout_s)

    async def _drop_unregistered(self) -> None:
        """Drop loaded adapters that an administrator has unregistered."""
        if self._engine.adapter_pool and self._engine.adapter_pool.has_registered:
            try:
                registered = await self._adapter_registry.all()
            except UnavailableError:
                return
            self._engine.adapter_pool.drop_unregistered(registered.values())

    async def _watch(self) -> None:
        """End the replica when its engine has died or hangs."""
        reason = await wait_until_lost(self._engine, settings().engine_stall_timeout_s)
        logger.error("Model `%s`: the engine %s; this replica ends.", self._model.model_id, reason)
        self._engine.kill()
        await self._drain_and_exit(_LAST_EVENTS_S)

    def _start_draining(self) -> None:
        logger.info("Model `%s`: draining.", self._model.model_id)
        self._draining = asyncio.create_task(self._drain_and_exit(self._drain_timeout_s))

    async def _drain_and_exit(self, timeout_s: float) -> None:
        """Drain, stop the engine, and exit."""
        await drain(self._gate, self._receiver, self._slots, timeout_s)
        with suppress(Exception):
            await self.__del__()
        end_process()

    async def __del__(self) -> None:
        """Stop the replica; Ray Serve awaits this after its last request."""
        watching = getattr(self, "_watching", None)
        if watching and watching is not asyncio.current_task():
            watching.cancel()
        if receiver := getattr(self, "_receiver", None):
            receiver.close()
        if hasattr(self, "_http"):
            self._http.should_exit = True
            await asyncio.wait([self._serving], timeout=5)
        await self._engine.stop(timeout_s=5)
        if meter := getattr(self, "_usage_meter", None):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_UPLOAD_S):
                    await meter.close()
