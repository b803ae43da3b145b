"""The door: every name of vLLM that this package leans on is imported here and nowhere else.

Written for vLLM 0.29. `USED` lists what it needs, and a test asserts that the installed vLLM has it all: after an
upgrade it says which broke. vLLM is imported inside the functions because importing it takes tens of seconds and reads
environment variables once for all.
"""

from __future__ import annotations

import importlib
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayllm.engine.arguments import VllmArguments
from rayllm.errors import ConfigError

# module → the names used from it, dotted where they are attributes.
USED = {
    "vllm.engine.arg_utils": ("AsyncEngineArgs.create_engine_config",),
    "vllm.entrypoints.launchers.app": ("build_app",),
    "vllm.entrypoints.launchers.api_server.app_state": ("init_app_state",),
    "vllm.entrypoints.launchers.cli_args": ("FrontendArgs",),
    "vllm.entrypoints.openai.models.serving": ("OpenAIServingModels.model_name",),
    "vllm.entrypoints.openai.chat_completion.protocol": ("ChatCompletionRequest.model_fields",),
    "vllm.entrypoints.openai.completion.protocol": ("CompletionRequest.model_fields",),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.lora.resolver": ("LoRAResolver", "LoRAResolverRegistry.register_resolver"),
    "vllm.platforms": ("current_platform",),
    "vllm.reasoning": ("ReasoningParserManager.list_registered", "ReasoningParserManager.import_reasoning_parser"),
    "vllm.tool_parsers": ("ToolParserManager.list_registered", "ToolParserManager.import_tool_parser"),
    "vllm.usage.usage_lib": ("UsageContext.OPENAI_API_SERVER",),
    "vllm.v1.engine.async_llm": (
        "AsyncLLM.from_vllm_config",
        "AsyncLLM.get_supported_tasks",
        "AsyncLLM.get_tokenizer",
        "AsyncLLM.is_sleeping",
        "AsyncLLM.check_health",
        "AsyncLLM.shutdown",
    ),
}


def missing_names() -> list[str]:
    """The names in `USED` that the installed vLLM lacks."""
    return [f"{module}.{name}" for module, names in USED.items() for name in names if not _has(module, name)]


def _has(module: str, name: str) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return True


def prepare_environment(extra_stop_strings: int, gpu_share: float = 0) -> None:
    """Set what vLLM reads from the environment at import. Call before anything here imports it.

    Args:
        extra_stop_strings: stops that the configuration adds to each request; vLLM counts them against its limit
            on the client's.
        gpu_share: the part of a GPU that each worker's bundle holds, as Ray is to be asked for it.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Opens vLLM's routes for loading adapters too; the router passes on no request to them.
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    # vLLM's own limits are far above what a shared service can give to one request.
    os.environ.setdefault("VLLM_MAX_N_SEQUENCES", "128")
    if gpu_share:
        os.environ.setdefault("VLLM_RAY_PER_WORKER_GPUS", str(gpu_share))
    limit = int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
    os.environ["VLLM_MAX_STOP_STRINGS"] = str(limit + extra_stop_strings)


def make_engine_config(arguments: VllmArguments) -> Any:
    """vLLM's nested engine configuration, checked. Needs to see the device that the workers will use.

    Raises:
        ConfigError: vLLM refuses a value; the message is vLLM's.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    try:
        return AsyncEngineArgs(**arguments.engine).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        # Some of vLLM's errors hold objects that cannot be pickled; only their text may leave this process.
        raise ConfigError(f"engine_kwargs: vLLM refuses them: {_in_one_line(error)}") from None


def make_server_arguments(arguments: VllmArguments) -> Namespace:
    """The flat namespace that vLLM's application reads.

    Raises:
        ConfigError: a tool or reasoning parser is unknown; the message names the known ones.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    server = FrontendArgs(**{"disable_fastapi_docs": True, **arguments.server})
    engine = AsyncEngineArgs(**arguments.engine)
    if server.tool_parser_plugin:
        ToolParserManager.import_tool_parser(server.tool_parser_plugin)
    if engine.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(engine.reasoning_parser_plugin)
    _check_known("tool_calling.parser", server.tool_call_parser, ToolParserManager.list_registered())
    _check_known("reasoning_parser", engine.reasoning_parser, ReasoningParserManager.list_registered())
    if engine.reasoning_parser:
        engine.structured_outputs_config.reasoning_parser = engine.reasoning_parser
    return Namespace(**(vars(server) | vars(engine)))


def _check_known(key: str, name: str | None, known: list[str]) -> None:
    if name and name not in known:
        raise ConfigError(f"{key}: vLLM has no parser `{name}`; it has {', '.join(sorted(known))}.")


def start_engine(config: Any, arguments: VllmArguments) -> Any:
    """Start the engine's processes and load the weights; blocks until it is ready. Returns an AsyncLLM."""
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    # A replica without a GPU of its own may have cached "no device" while vLLM was imported.
    clear = getattr(getattr(current_platform, "get_device_capability", None), "cache_clear", None)
    if clear:
        clear()
    return AsyncLLM.from_vllm_config(
        config,
        enable_log_requests=arguments.engine.get("enable_log_requests", False),
        disable_log_stats=arguments.engine.get("disable_log_stats", False),
    )


def resolve_adapters(locate: Callable[[str], Awaitable[Path | None]]) -> None:
    """Let vLLM ask `locate` for the folder of each adapter it does not know. Call before `make_server`."""
    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    class Resolver(LoRAResolver):  # type: ignore[misc]
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
            folder = await locate(lora_name)
            # vLLM gives the adapter an id of its own.
            return LoRARequest(lora_name, 1, str(folder)) if folder else None

    LoRAResolverRegistry.register_resolver("rayllm", Resolver())


async def make_server(engine: Any, arguments: Namespace) -> Any:
    """vLLM's own FastAPI application on `engine`. Once a process: vLLM keeps its routers in module globals."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    tasks = await engine.get_supported_tasks()
    app = build_app(arguments, tasks, engine.model_config)
    await init_app_state(engine, app.state, arguments, tasks)
    # Its error handlers set `should_exit` here when the engine has died.
    app.state.server = SimpleNamespace(should_exit=False)
    return app


def request_fields() -> frozenset[str]:
    """Names of the fields of vLLM's chat and completion requests."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return frozenset(ChatCompletionRequest.model_fields) | frozenset(CompletionRequest.model_fields)


def parser_names() -> dict[str, list[str]]:
    """Names of vLLM's own parsers by kind: `tool_parser` and `reasoning_parser`."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    return {
        "tool_parser": sorted(ToolParserManager.list_registered()),
        "reasoning_parser": sorted(ReasoningParserManager.list_registered()),
    }


def version() -> str:
    """vLLM's version."""
    import vllm

    return str(vllm.__version__)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:2000]
