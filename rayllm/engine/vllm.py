"""The door: every name of vLLM that this package leans on is imported here and nowhere else.

Written for vLLM 0.29. `USED` lists what it needs, and a test asserts that the installed vLLM has it all: after an
upgrade it says which broke. vLLM is imported inside the functions because importing it takes tens of seconds and reads
environment variables once for all.
"""

from __future__ import annotations

import importlib
import logging
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayllm.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.tool_plugin import load_tool_plugin
from rayllm.errors import ConfigError

logger = logging.getLogger(__name__)

# module → the names used from it, dotted where they are attributes.
USED = {
    "vllm.config": ("StructuredOutputsConfig",),
    "vllm.engine.arg_utils": ("AsyncEngineArgs.create_engine_config",),
    "vllm.entrypoints.launchers.app": ("build_app",),
    "vllm.entrypoints.launchers.api_server.app_state": ("init_app_state",),
    "vllm.entrypoints.launchers.cli_args": ("FrontendArgs",),
    "vllm.entrypoints.openai.models.serving": ("OpenAIServingModels.model_name",),
    "vllm.entrypoints.anthropic.protocol": ("AnthropicMessagesRequest.model_fields",),
    "vllm.entrypoints.openai.chat_completion.protocol": (
        "BatchChatCompletionRequest.model_fields",
        "ChatCompletionRequest.model_fields",
    ),
    "vllm.entrypoints.openai.completion.protocol": ("CompletionRequest.model_fields",),
    "vllm.entrypoints.openai.responses.protocol": ("ResponsesRequest.model_fields",),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.lora.resolver": ("LoRAResolver", "LoRAResolverRegistry.register_resolver"),
    "vllm.platforms": ("current_platform",),
    "vllm.reasoning": ("ReasoningParserManager.list_registered", "ReasoningParserManager.import_reasoning_parser"),
    "vllm.tool_parsers": ("ToolParserManager.list_registered", "ToolParserManager.lazy_parsers"),
    "vllm.usage.usage_lib": ("UsageContext.OPENAI_API_SERVER",),
    "vllm.v1.structured_output.backend_xgrammar": ("has_xgrammar_unsupported_json_features",),
    "vllm.lora.punica_wrapper.punica_cpu": ("PunicaWrapperCPU.add_lora_logits", "PunicaWrapperCPU.token_lora_indices"),
    "vllm.v1.structured_output.utils": ("convert_lark_to_ebnf", "grammar_is_likely_lark"),
    "vllm.v1.engine.input_processor": ("InputProcessor",),
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
    # A host that may be asked for media could send vLLM on to one that may not.
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
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
    from vllm.usage.usage_lib import UsageContext

    try:
        return _engine_arguments(arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        # Some of vLLM's errors hold objects that cannot be pickled; only their text may leave this process.
        raise ConfigError(f"engine_kwargs: vLLM refuses them: {_in_one_line(error)}") from None


def _engine_arguments(arguments: VllmArguments) -> Any:
    from vllm.config import StructuredOutputsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    values = dict(arguments.engine)
    if isinstance(values.get("structured_outputs_config"), dict):
        # The one nested configuration that vLLM writes to before it has turned a mapping into an object.
        values["structured_outputs_config"] = StructuredOutputsConfig(**values["structured_outputs_config"])
    return AsyncEngineArgs(**values)


def make_server_arguments(arguments: VllmArguments) -> Namespace:
    """The flat namespace that vLLM's application reads.

    Raises:
        ConfigError: a tool or reasoning parser is unknown; the message names the known ones.
    """
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    server = FrontendArgs(**{"disable_fastapi_docs": True, **arguments.server})
    engine = _engine_arguments(arguments)
    if server.tool_parser_plugin:
        load_tool_plugin(server.tool_parser_plugin, ToolParserManager)
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


def paths(server: Any) -> frozenset[str]:
    """The paths that vLLM's application answers to POST, which follow from what the model can do."""
    return frozenset(route.path for route in server.routes if "POST" in (getattr(route, "methods", None) or ()))


def stop_at(engine: Any, token_ids: Collection[int]) -> None:
    """Let these tokens end every answer of every endpoint, as if the model's generation config named them."""
    fields = engine.input_processor.generation_config_fields
    own = fields.get("eos_token_id")
    known = [own] if isinstance(own, int) else list(own or ())
    fields["eos_token_id"] = list(dict.fromkeys([*known, *token_ids]))


def grammar_vocabulary(engine: Any) -> str | None:
    """The tokenizer's vocabulary for xgrammar; None where the server compiles constraints with another library."""
    import xgrammar

    if engine.vllm_config.structured_outputs_config.backend != "xgrammar":
        return None
    try:
        tokenizer = engine.get_tokenizer()
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=engine.model_config.get_vocab_size())
    except Exception as error:
        # Mistral's own tokenizers are no HuggingFace ones.
        logger.warning("Constraints cannot be tried out with this model's tokenizer: %s", _in_one_line(error))
        return None
    text: str = info.serialize_json()
    return text


def as_ebnf(grammar: str) -> str:
    """A grammar as vLLM gives it to its compiler, which knows no Lark.

    Raises:
        ValueError: it cannot be converted.
    """
    from vllm.v1.structured_output.utils import convert_lark_to_ebnf, grammar_is_likely_lark

    return str(convert_lark_to_ebnf(grammar)) if grammar_is_likely_lark(grammar) else grammar


def can_enforce(schema: dict[str, Any]) -> bool:
    """Whether xgrammar can enforce all of a JSON schema, as vLLM sees it."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    return not has_xgrammar_unsupported_json_features(schema)


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


def request_fields() -> dict[str, list[str]]:
    """Names of the fields of vLLM's requests, by the path of each endpoint that generates text."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest, ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    requests = {
        CHAT: ChatCompletionRequest,
        CHAT_BATCH: BatchChatCompletionRequest,
        COMPLETIONS: CompletionRequest,
        RESPONSES: ResponsesRequest,
        MESSAGES: AnthropicMessagesRequest,
    }
    return {path: sorted(request.model_fields) for path, request in requests.items()}


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
