"""An engine with vLLM's OpenAI application, which a replica serves."""

import asyncio
import importlib.util
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from rayllm.config import ModelConfig
from rayllm.core.endpoints import BY_PATH
from rayllm.core.errors import ConfigError, EngineError
from rayllm.core.settings import settings
from rayllm.engine.adapters.pool import AdapterPool, adapter_plan
from rayllm.engine.adapters.setup import adapter_pool_of
from rayllm.engine.arguments import VllmArguments, Workers, vllm_arguments
from rayllm.engine.cpu import threads_text, with_cpu_defaults
from rayllm.engine.guided import PROCESSOR, GuidedService, chosen_folder
from rayllm.engine.in_process import InProcessClient
from rayllm.engine.middleware.error_translation import ErrorMiddleware
from rayllm.engine.middleware.request_preparation import PreparationMiddleware
from rayllm.engine.middleware.request_scope import (
    RequestScopeMiddleware,
    echo_requested_name,
    request_path,
    requested_stops,
    requested_tokens,
    sequences_of_request,
    token_log,
)
from rayllm.engine.process.forking import ForkContext
from rayllm.engine.process.watchdog import any_stopped, busy_seconds
from rayllm.engine.request_plan import RequestPlan, plan_requests
from rayllm.engine.structured_output.gate import ConstraintGate
from rayllm.engine.structured_output.sandbox import Sandbox
from rayllm.engine.vllm import application as vllm_application
from rayllm.engine.vllm import context_length as vllm_context_length
from rayllm.engine.vllm import continuation as vllm_continuation
from rayllm.engine.vllm import engine as vllm_engine
from rayllm.engine.vllm import errors as vllm_errors
from rayllm.engine.vllm import forced_calls as vllm_forced_calls
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm import per_request as vllm_per_request
from rayllm.engine.vllm import request_stats as vllm_request_stats
from rayllm.engine.vllm import sampling_limits as vllm_sampling_limits
from rayllm.engine.vllm import structured_output as vllm_structured_output
from rayllm.engine.vllm.constraint_compiler import ConstraintCompiler
from rayllm.lora import Adapter
from rayllm.plan.consistency import find_contradiction
from rayllm.plan.cores import ALONE, Neighbors
from rayllm.sources import LoggedProgress, Progress

logger = logging.getLogger(__name__)

# Steps for which prompts wait in the engine. More would be served in order of arrival, not of class and tenant.
_STEPS_AHEAD = 2

Configure = Callable[[VllmArguments], Any]


class EngineServer:
    """An engine and its application, from `start` to `stop`. One per process: vLLM keeps state in module globals."""

    def __init__(self, model: ModelConfig, aliases: tuple[str, ...] = ()) -> None:
        self._model = model
        self._names = (model.model_id, *aliases)
        self._engine: Any = None
        self._server: Any = None
        self._guided: GuidedService | None = None
        self._workers: Workers = "cpu"
        self._context: ForkContext | None = None
        self._open = AsyncExitStack()
        self.adapter_pool: AdapterPool | None = None
        self.app: ASGIApp
        self.in_process: InProcessClient

    async def start(
        self,
        weights: str,
        tokenizer_folder: Path | None,
        configure: Configure | None = None,
        host: str = "127.0.0.1",
        progress: Callable[[], Progress] = LoggedProgress,
        workers: Workers = "cpu",
        neighbors: Neighbors = ALONE,
        on_other_nodes: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Start the engine and build the application.

        Args:
            weights: a local folder, or an address that vLLM streams the weights from.
            tokenizer_folder: None if the tokenizer is in `weights`.
            configure: creates vLLM's engine configuration where the device is visible; None does so here.
            host: this machine's address for the engine's workers.
            progress: creates the observer of an adapter's download.
            neighbors: the engines that share the cores with this one.
            on_other_nodes: calls a function on each other node where Ray has placed workers.

        Raises:
            ConfigError: vLLM refuses the configuration, or the weights contradict their config.json.
            EngineError: the engine did not start.
            RayLLMError: an adapter listed in the configuration cannot be loaded.
        """
        self._workers = workers
        await self._prepare_process(weights, neighbors)
        self._guided = await self._start_guided(host)
        processors = (PROCESSOR,) if self._guided else ()
        arguments = vllm_arguments(self._model, weights, tokenizer_folder, self._names, workers, processors)
        await asyncio.to_thread(vllm_engine.choose_runner, arguments)
        config = await asyncio.to_thread(configure or vllm_engine.make_engine_config, arguments)
        await asyncio.to_thread(vllm_structured_output.choose_backend, config)
        server_arguments = vllm_application.make_server_arguments(arguments)
        await self._start_engine(config, arguments, weights)
        plan = self._plan(self._model)
        self._patch_engine(plan)
        await self._build_server(server_arguments, plan)
        elsewhere = on_other_nodes if workers == "ray" else None
        self.adapter_pool = adapter_pool_of(self._model, self._engine, self._server, self._plan, progress, elsewhere)
        gate = self._guard_constraints()
        self._patch_replies()
        self.app = self._wrap(plan, gate)
        self.in_process = InProcessClient(self._engine, self._model, plan, gate.admit, self.adapter_pool)
        await self._load_listed_adapters()

    async def _prepare_process(self, weights: str, neighbors: Neighbors) -> None:
        """Set the environment for this machine, then import vLLM, which reads the environment."""
        vllm_engine.check_version()
        if self._workers == "cpu":
            self._model = await asyncio.to_thread(with_cpu_defaults, self._model, Path(weights), neighbors)
            self._context = await asyncio.to_thread(vllm_engine.cpu_fork_context)
        await asyncio.to_thread(vllm_engine.import_vllm)

    async def _start_guided(self, host: str) -> GuidedService | None:
        """Load the guided decoding backends, before the engine's processes inherit the environment."""
        chosen = chosen_folder(self._model.guided_decoding, os.environ)
        # NIM's variables apply to a whole node, but only models that generate take logits processors.
        if chosen is None or self._model.task not in (None, "generate"):
            return None
        guided = await GuidedService.start(*chosen, settings().cache_path, host)
        self._open.push_async_callback(guided.stop)
        return guided

    async def _start_engine(self, config: Any, arguments: VllmArguments, weights: str) -> None:
        model = self._model
        try:
            self._engine = await asyncio.to_thread(
                vllm_engine.start_engine, config, arguments, model.log_engine_metrics, self._context
            )
        except EngineError:
            # vLLM names at most the parameter of its own code that a tensor does not fit.
            if contradiction := await asyncio.to_thread(find_contradiction, weights, model.engine_kwargs):
                raise ConfigError(f"model `{model.model_id}`: {contradiction.message}") from None
            raise

    def _plan(self, model: ModelConfig) -> RequestPlan:
        own_template = partial(vllm_application.own_chat_template, self._engine)
        plan = plan_requests(model, self._engine.get_tokenizer(), own_template)
        context_length = self._engine.model_config.max_model_len
        return replace(
            plan,
            takes_backends=self._guided is not None,
            context_length=context_length,
            has_template=bool(plan.chat_template or (self._generates() and own_template())),
            modalities=tuple(vllm_engine.input_modalities(self._engine)),
            limits_thinking=bool(getattr(self._engine.vllm_config.reasoning_config, "enabled", False)),
        )

    def _patch_engine(self, plan: RequestPlan) -> None:
        """Change how the AsyncLLM handles every request, before vLLM's application uses the AsyncLLM."""
        vllm_request_stats.collect(self._engine, sequences_of_request)
        vllm_per_request.stop_at(self._engine, lambda: (adapter_plan() or plan).stop_token_ids)
        vllm_context_length.keep_to_context(self._engine, self._model.max_tokens, request_path, requested_tokens)
        vllm_sampling_limits.limit_sampling(self._engine)

    async def _build_server(self, arguments: Any, plan: RequestPlan) -> None:
        if plan.chat_template is not None:
            arguments.chat_template = plan.chat_template
        if plan.owns_template:
            # The compiled template takes plain text; vLLM joins text parts for it.
            arguments.chat_template_content_format = "string"
        self._server = server = await vllm_application.make_server(self._engine, arguments, request_path)
        vllm_application.name_requested_stops(requested_stops)
        _check_packages(vllm_application.paths(server), self._model.model_id)
        await self._open.enter_async_context(server.router.lifespan_context(server))
        if self._guided:
            self._guided.attach(server.state)

    def _guard_constraints(self) -> ConstraintGate:
        """Put a gate for constraints before the engine; returns the gate."""
        compiler = ConstraintCompiler(self._engine)
        gate = ConstraintGate(
            vllm_structured_output.backend_of(self._engine),
            compiler.find_fault,
            self._make_sandbox(),
            vllm_structured_output.server_options(self._engine),
        )
        vllm_continuation.log_streams(self._engine, token_log)
        vllm_structured_output.guard_generation(self._engine, gate, compiler.is_satisfied)
        vllm_forced_calls.enforce_arguments()
        return gate

    def _make_sandbox(self) -> Sandbox | None:
        """The sandbox for xgrammar, whose process starts with the first constraint; None if xgrammar is not used."""
        vocabulary = vllm_structured_output.grammar_vocabulary(self._engine) if self._generates() else None
        if vocabulary is None:
            return None
        config = self._engine.vllm_config.structured_outputs_config
        sandbox = Sandbox(vocabulary, not config.disable_any_whitespace, self._context)
        self._open.push_async_callback(sandbox.stop)
        return sandbox

    def _patch_replies(self) -> None:
        """Change the names, ids, errors and templates that vLLM's application uses in replies."""
        echo_requested_name(self._server.state.openai_serving_models, self._names)
        vllm_per_request.make_reproducible(token_log)
        vllm_application.pass_anthropic_errors(self._server)
        if self.adapter_pool:
            vllm_per_request.vary_templates(
                self._server, lambda: override.chat_template if (override := adapter_plan()) else None
            )

    def _wrap(self, plan: RequestPlan, gate: ConstraintGate) -> ASGIApp:
        """Wrap vLLM's application in middleware, the innermost first."""
        model_id, paths = self._model.model_id, vllm_application.paths(self._server)
        app: ASGIApp = PreparationMiddleware(self._server, model_id, paths, self.adapter_pool, plan, gate.admit)
        app = ErrorMiddleware(app, vllm_errors.error_object)
        return RequestScopeMiddleware(app, vllm_request_stats.summarize)

    async def _load_listed_adapters(self) -> None:
        """Load the adapters of the configuration: a replica must not start without them."""
        if self.adapter_pool and self._model.lora_config:
            for module in self._model.lora_config.lora_modules:
                await self.adapter_pool.load(Adapter(self._model.model_id, module.name))

    async def warm_up(self) -> None:
        """Generate one token, which does one-time work before the first client's request.

        On a GPU, the prompt fills a step, since kernels are compiled for shapes when they first come.
        """
        if self._generates():
            config = self._engine.vllm_config
            tokens = 1 if self._workers == "cpu" else config.scheduler_config.max_num_batched_tokens
            await vllm_engine.generate_one(self._engine, min(tokens, config.model_config.max_model_len - 1))
        # Without a cache, vLLM reads some variables for every token.
        vllm_engine.cache_environment()

    def _generates(self) -> bool:
        return bool(self._engine.model_config.runner_type == "generate")

    async def check(self, timeout_s: float) -> None:
        """Make a round trip to the engine's process. Raises EngineError if it died, or does not answer in time."""
        if self._server.state.server.should_exit:
            raise EngineError("The engine died.")
        try:
            await self._engine.check_health()
            # `check_health` does not notice an engine that hangs.
            await asyncio.wait_for(self.ping(), timeout_s)
        except TimeoutError:
            raise EngineError(f"The engine did not answer within {timeout_s:g} s.") from None
        except Exception as error:
            logger.error("The engine died: %r", error)
            raise EngineError("The engine died.") from None

    @property
    def compute(self) -> str:
        """The type that the engine computes in and, on a CPU, the number of threads."""
        dtype = str(self._engine.model_config.dtype).removeprefix("torch.")
        if self._workers != "cpu":
            return dtype
        return f"{dtype}, {threads_text()}"

    @property
    def has_died(self) -> bool:
        """Whether the engine's process has ended. vLLM notices within milliseconds."""
        return self._engine is not None and bool(self._engine.errored)

    async def ping(self) -> None:
        """Wait for a response from the engine's process, which responds between two steps."""
        await self._engine.is_sleeping()

    @property
    def longest_step_s(self) -> float | None:
        """Seconds that vLLM allows a step on a GPU; None on a CPU, where steps of any length use the CPU."""
        return None if self._workers == "cpu" else vllm_engine.longest_step_s()

    def busy_seconds(self) -> float:
        """Seconds that the engine's processes on this node ran or waited for a CPU."""
        return busy_seconds(vllm_engine.process_ids(self._engine))

    def is_stopped(self) -> bool:
        """Whether one of the engine's processes on this node is stopped, as by SIGSTOP."""
        return any_stopped(vllm_engine.process_ids(self._engine))

    def kill(self) -> None:
        """Kill the engine's processes. Requests in progress fail."""
        vllm_engine.kill_engine(self._engine)

    def unfinished_requests(self) -> int:
        """Requests running or queued in the engine."""
        return int(self._engine.output_processor.get_num_unfinished_requests())

    def load(self) -> dict[str, float]:
        """Prompt tokens queued, and the share of the KV cache in use."""
        return {"queued_tokens": float(self.queued_tokens()), "kv_use": vllm_engine.kv_use()}

    def queued_tokens(self) -> int:
        """Prompt tokens of the requests whose prefill has not ended."""
        states = self._engine.output_processor.request_states.values()
        return sum(state.prompt_len for state in states if state.is_prefilling)

    @property
    def prompt_backlog(self) -> int:
        """The number of queued prompt tokens that keep the engine busy for its next steps."""
        return _STEPS_AHEAD * int(self._engine.vllm_config.scheduler_config.max_num_batched_tokens)

    def generated_tokens(self) -> int:
        """Tokens generated since the start."""
        return vllm_engine.generated_tokens()

    def describe(self) -> dict[str, Any]:
        """Facts about the model, vLLM's version, and the full names of the loaded adapters."""
        labels = self.in_process.labels()
        return {
            "max_model_len": self._engine.model_config.max_model_len,
            "labels": [labels[index] for index in sorted(labels)],
            "endpoints": [path for path in BY_PATH if path in vllm_application.paths(self._server)],
            "input_modalities": vllm_engine.input_modalities(self._engine),
            "vllm_version": str(moved_names.installed_version()),
            "adapters": self.adapter_pool.loaded_adapters if self.adapter_pool else [],
        }

    async def stop(self, timeout_s: float) -> None:
        """Stop the engine's processes, aborting requests unfinished after `timeout_s` seconds."""
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown, timeout_s)
        await self._open.aclose()


def _check_packages(paths: frozenset[str], model_id: str) -> None:
    """Refuse a speech model without audio libraries: vLLM would call files broken, or misread them."""
    missing = [name for name in ("soundfile", "av") if importlib.util.find_spec(name) is None]
    if missing and any(BY_PATH[path].is_form for path in paths & BY_PATH.keys()):
        raise ConfigError(f"model `{model_id}` takes audio; install {' and '.join(missing)} beside vLLM.")
