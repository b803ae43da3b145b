"""The door: every name of vLLM that this package leans on is imported here and nowhere else.

Written for vLLM 0.29. `USED` lists what it needs, and a test asserts that the installed vLLM has it all: after an
upgrade it says which broke. vLLM is imported inside the functions because importing it takes tens of seconds and reads
environment variables once for all.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayllm.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES
from rayllm.engine import compatibility, orphan
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.constraints import OPTIONS
from rayllm.engine.layers.validation import validate_cheaply
from rayllm.engine.prompt import Prompt
from rayllm.engine.tool_plugin import load_tool_plugin
from rayllm.errors import (
    ADAPTER_UNAVAILABLE,
    ConfigError,
    EngineError,
    RayLLMError,
    RequestError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

# What vLLM, PyTorch and safetensors say where an adapter's files are at fault; all else is the engine's own failure.
_BROKEN_ADAPTER = re.compile(
    r"LoRA rank|[Mm]issing required configuration|modules_to_save|DoRA|[Aa]dapter bias|target modules in"
    r"|unsupported LoRA weight|LoRA weight name|doesn't contain tensors|vocabulary size|LoRA-B output dim"
    r"|size of tensor|size mismatch|shape mismatch|deserializing header|SafetensorError|JSONDecodeError|Expecting value"
)

# module → the names used from it, dotted where they are attributes.
USED = {
    "vllm.config": (
        "StructuredOutputsConfig.disable_additional_properties",
        "StructuredOutputsConfig.disable_any_whitespace",
    ),
    "vllm.engine.arg_utils": ("AsyncEngineArgs.create_engine_config",),
    "vllm.entrypoints.launchers.app": ("build_app",),
    "vllm.entrypoints.launchers.api_server.app_state": ("init_app_state",),
    "vllm.entrypoints.launchers.cli_args": ("FrontendArgs",),
    "vllm.entrypoints.openai.models.serving": ("OpenAIServingModels.model_name",),
    "vllm.entrypoints.anthropic.protocol": ("AnthropicMessagesRequest.model_fields",),
    "vllm.entrypoints.anthropic.serving": ("AnthropicServingMessages.message_stream_converter",),
    "vllm.entrypoints.openai.chat_completion.protocol": (
        "BatchChatCompletionRequest.model_fields",
        "ChatCompletionRequest.model_fields",
    ),
    "vllm.entrypoints.openai.completion.protocol": (
        "CompletionRequest.model_fields",
        "CompletionRequest.to_sampling_params",
    ),
    "vllm.entrypoints.openai.responses.protocol": ("ResponsesRequest.model_fields",),
    "vllm.entrypoints.serve.exception_handling.error_response": ("create_error_response",),
    "vllm.exceptions": ("GenerationError", "GracefulHTTPError", "VLLMClientError", "VLLMValidationError"),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.platforms": ("current_platform",),
    "vllm.reasoning": ("ReasoningParserManager.list_registered", "ReasoningParserManager.import_reasoning_parser"),
    "vllm.sampling_params": ("SamplingParams",),
    "vllm.tool_parsers": ("ToolParserManager.list_registered", "ToolParserManager.lazy_parsers"),
    "vllm.renderers.hf": ("resolve_chat_template",),
    "vllm.usage.usage_lib": ("UsageContext.OPENAI_API_SERVER",),
    "vllm.v1.structured_output.backend_xgrammar": ("has_xgrammar_unsupported_json_features",),
    "vllm.lora.ops.torch_ops.lora_ops": ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"),
    "vllm.lora.punica_wrapper.punica_cpu": (
        "PunicaWrapperCPU.add_lora_logits",
        "PunicaWrapperCPU.token_lora_indices",
        "bgmv_shrink",
        "bgmv_expand",
        "bgmv_expand_slice",
    ),
    "vllm.v1.structured_output.request": ("get_structured_output_key",),
    "vllm.v1.structured_output.utils": ("convert_lark_to_ebnf", "grammar_is_likely_lark"),
    "vllm.pooling_params": ("PoolingParams.dimensions", "PoolingParams.use_activation"),
    "vllm.v1.engine.exceptions": ("EngineDeadError", "EngineGenerateError"),
    "vllm.v1.engine.core_client": ("BackgroundResources.engine_manager",),
    "vllm.v1.engine.utils": ("CoreEngineProcManager.shutdown",),
    "vllm.v1.executor.uniproc_executor": ("UniProcExecutor",),
    "vllm.v1.engine.input_processor": ("InputProcessor",),
    "vllm.v1.engine.async_llm": (
        "AsyncLLM.from_vllm_config",
        "AsyncLLM.get_supported_tasks",
        "AsyncLLM.get_tokenizer",
        "AsyncLLM.is_sleeping",
        "AsyncLLM.check_health",
        "AsyncLLM.errored",
        "AsyncLLM.encode",
        "AsyncLLM.errored",
        "AsyncLLM.generate",
        "AsyncLLM.add_lora",
        "AsyncLLM.remove_lora",
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
    orphan.mark()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
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
    if server.tool_parser_plugin or engine.reasoning_parser_plugin:
        # Plugins of users import from vLLM, by the paths of its day.
        compatibility.install()
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


def has_died(engine: Any) -> bool:
    """Whether the engine's process has ended. vLLM notices within milliseconds."""
    return bool(engine.errored)


def process_ids(engine: Any) -> list[int]:
    """The engine's processes on this machine, without their children."""
    manager = engine.engine_core.resources.engine_manager
    return [process.pid for process in getattr(manager, "processes", ()) if process.pid]


def waiting_tokens(engine: Any) -> int:
    """Prompt tokens of the requests that have no answer yet."""
    states = engine.output_processor.request_states.values()
    return sum(state.prompt_len for state in states if state.is_prefilling)


def kv_use() -> float:
    """The share of the KV cache that requests hold; what is only kept for later ones is not counted.

    As vLLM's own metric says, so 0 where `disable_log_stats` is set.
    """
    return max(_samples("vllm:kv_cache_usage_perc"), default=0.0)


def generated_tokens() -> int:
    """Tokens that the engine has generated since it started; 0 where `disable_log_stats` is set."""
    return int(sum(_samples("vllm:generation_tokens_total")))


def _samples(name: str) -> list[float]:
    """The values of one of vLLM's metrics in this process."""
    from prometheus_client import REGISTRY

    return [sample.value for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name]


class AdapterSlots:
    """The adapters of an engine, as vLLM's application finds them: by the name of the model that a request asks for.

    Args:
        engine: an AsyncLLM.
        models: the application's `OpenAIServingModels`.
    """

    def __init__(self, engine: Any, models: Any) -> None:
        self._engine = engine
        self._models = models

    async def add(self, name: str, key: str, folder: Path) -> Any:
        """Load the adapter `name`, which lies in `folder`, as `key`; returns vLLM's LoRARequest.

        Raises:
            RequestError: its files are at fault.
            UnavailableError: the engine failed on it, for want of memory for example.
            EngineError: the engine is dead.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(key, self._models.lora_id_counter.inc(1), str(folder))
        try:
            await self._engine.add_lora(request)
        except Exception as error:
            raise self._fault(name, folder, error) from None
        return request

    def _fault(self, name: str, folder: Path, error: Exception) -> RayLLMError:
        # The engine's process sends the text of its error and nothing else.
        reason = _in_one_line(error)
        if self._engine.errored:
            logger.error("The engine died while the adapter `%s` was loaded: %s", name, reason)
            return EngineError("The engine died.")
        if _BROKEN_ADAPTER.search(reason):
            logger.warning("vLLM refuses the adapter `%s`: %s", name, reason)
            said = reason.replace(str(folder), "its folder")[:300]
            message = f"The adapter `{name}` cannot be used: vLLM refuses it: {said}"
            return RequestError(message, "model", "adapter_broken")
        logger.error("The engine failed to load the adapter `%s`: %s", name, reason)
        message = f"The engine failed to load the adapter `{name}`; the server's log says why."
        return UnavailableError(message, "model", ADAPTER_UNAVAILABLE, 10)

    def answer_to(self, name: str, loaded: Any) -> None:
        """Let requests for the model `name` use the adapter."""
        self._models.lora_requests[name] = loaded

    async def remove(self, loaded: Any) -> None:
        """Take the adapter out of the engine, and out of the application under all its names."""
        known = self._models.lora_requests
        for name in [name for name, request in known.items() if request.lora_int_id == loaded.lora_int_id]:
            del known[name]
        await self._engine.remove_lora(loaded.lora_int_id)


def max_lora_rank(engine: Any) -> int:
    """The largest rank of an adapter that the engine takes."""
    return int(engine.vllm_config.lora_config.max_lora_rank)


def vary_templates(server: Any, choose: Callable[[], str | None]) -> None:
    """Let `choose` give the chat template of each request, and where it gives None, the application's stay."""
    for serving in {id(value): value for value in vars(server.state)["_state"].values()}.values():
        if "chat_template" in getattr(serving, "__dict__", {}):
            _vary(serving, "chat_template", lambda own: choose() or own)


def _vary(holder: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Make an attribute of one object go through `change` whenever it is read."""
    own = getattr(holder, name)
    kind = type(holder)
    varied = type(kind.__name__, (kind,), {name: property(lambda self: change(own))})
    del holder.__dict__[name]
    holder.__class__ = varied


def paths(server: Any) -> frozenset[str]:
    """The paths that vLLM's application answers to POST, which follow from what the model can do."""
    return frozenset(route.path for route in server.routes if "POST" in (getattr(route, "methods", None) or ()))


def stop_at(engine: Any, token_ids: Callable[[], Collection[int]]) -> None:
    """Let these tokens end the answers of every endpoint, as if the model's generation config named them.

    Args:
        engine: an AsyncLLM.
        token_ids: gives the tokens for the request that is being taken in.
    """

    def with_stops(fields: dict[str, Any]) -> dict[str, Any]:
        own = fields.get("eos_token_id")
        known = [own] if isinstance(own, int) else list(own or ())
        return {**fields, "eos_token_id": list(dict.fromkeys([*known, *token_ids()]))}

    _vary(engine.input_processor, "generation_config_fields", with_stops)


def own_chat_template(engine: Any) -> str | None:
    """The chat template that vLLM finds with the model for requests without tools: the processor's goes first."""
    from vllm.renderers.hf import resolve_chat_template

    tokenizer = engine.get_tokenizer()
    if not hasattr(tokenizer, "get_chat_template"):
        # Mistral's own tokenizers have no template in text.
        return None
    template = resolve_chat_template(tokenizer, None, None, model_config=engine.model_config)
    return str(template) if template is not None else None


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


def guard_generation(engine: Any, admit: Callable[[str, str, bool], Awaitable[None]]) -> None:
    """Have `admit` see every constraint before the engine compiles it, and let no generation fail in silence.

    vLLM's serving classes take an output that ends with an error before its first token for one still to come, and
    end the stream as if all were well.

    Args:
        engine: an AsyncLLM; its `generate` is replaced.
        admit: takes the kind and the text of a constraint, and whether vLLM has refused the request; raises a
            RayLLMError for one that the engine cannot compile.
    """
    from vllm.exceptions import GenerationError, VLLMValidationError

    original = engine.generate

    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        await _admit(sampling_params.structured_outputs, admit, False)
        async with aclosing(original(prompt, sampling_params, *args, **kwargs)) as outputs:
            try:
                async for output in outputs:
                    if any(one.finish_reason == "error" for one in output.outputs):
                        raise GenerationError
                    yield output
            except VLLMValidationError:
                # Of a constraint it may say no more than that it is invalid.
                await _admit(sampling_params.structured_outputs, admit, True)
                raise

    engine.generate = generate


async def _admit(structured: Any, admit: Callable[[str, str, bool], Awaitable[None]], is_refused: bool) -> None:
    from vllm.exceptions import GracefulHTTPError, VLLMValidationError
    from vllm.v1.structured_output.request import get_structured_output_key

    if structured is None or structured.all_constraints_none():
        return
    kind, spec = get_structured_output_key(structured)
    try:
        await admit(kind.name.lower(), spec, is_refused)
    except RequestError as error:
        raise VLLMValidationError(error.message, parameter=error.param) from None
    except RayLLMError as error:
        raise GracefulHTTPError(error.message, HTTPStatus(error.status)) from None


def keep_stream_errors(server: Any) -> None:
    """Let errors of a chat's stream pass through vLLM's conversion to Anthropic's events, which cannot read them."""
    serving = getattr(server.state, "anthropic_serving_messages", None)
    if serving is None:
        return
    original = serving.message_stream_converter

    async def converted(chunks: AsyncIterator[str]) -> AsyncIterator[str]:
        errors: list[str] = []

        async def without_errors() -> AsyncIterator[str]:
            async for chunk in chunks:
                if chunk.startswith('data: {"error"'):
                    errors.append(chunk)
                elif not errors:
                    yield chunk

        async for event in original(without_errors()):
            yield event
        for chunk in errors:
            yield f"event: error\n{chunk}"

    serving.message_stream_converter = converted


def error_object(error: BaseException) -> dict[str, Any] | None:
    """What vLLM would say about the request that `error` refuses; None where the request is not at fault.

    Looks behind Starlette's error about a reply that had already begun.
    """
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VLLMClientError | GracefulHTTPError):
            return dict(create_error_response(cause).model_dump()["error"])
        cause = cause.__cause__
    return None


def held_options(engine: Any) -> frozenset[str]:
    """Options of a request's `structured_outputs` that hold for every request: vLLM obeys its own configuration."""
    config = engine.vllm_config.structured_outputs_config
    held = {name for name in OPTIONS if getattr(config, name)}
    # It compiles schemas strictly: a property that is not named is not allowed.
    return frozenset(held | ({"disable_additional_properties"} if config.backend == "xgrammar" else set()))


async def make_server(engine: Any, arguments: Namespace) -> Any:
    """vLLM's own FastAPI application on `engine`. Once a process: vLLM keeps its routers in module globals."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    tasks = await engine.get_supported_tasks()
    app = build_app(arguments, tasks, engine.model_config)
    await init_app_state(engine, app.state, arguments, tasks)
    # Its error handlers set `should_exit` here when the engine has died.
    app.state.server = SimpleNamespace(should_exit=False)
    validate_cheaply(app)
    return app


def max_num_seqs(engine: Any) -> int:
    """Sequences that the engine works on at once, over all stages of its pipeline."""
    config = engine.vllm_config
    return int(config.scheduler_config.max_num_seqs * config.parallel_config.pipeline_parallel_size)


def completion_request(body: dict[str, Any]) -> Any:
    """vLLM's own reading of a completion request.

    Raises:
        RequestError: a field is wrong; the message is vLLM's.
    """
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.exceptions import VLLMClientError

    given = body.get("max_tokens")
    try:
        request = CompletionRequest(**body)
    except (ValueError, VLLMClientError) as error:
        raise RequestError(f"sampling_params: {_in_one_line(error)}", "sampling_params") from None
    # Completions end after 16 tokens where nothing is said; a row may use what its prompt leaves of the context.
    request.max_tokens = given
    return request


async def generate(engine: Any, prompt: Prompt, request: Any, request_id: str, lora: Any, detokenize: bool) -> Any:
    """vLLM's final RequestOutput for one prompt.

    Args:
        engine: an AsyncLLM.
        prompt: what the model reads.
        request: from `completion_request`.
        request_id: names the request in the engine.
        lora: the adapter's LoRARequest, or None.
        detokenize: whether the engine writes the text; it does in any case where a stop is a text.

    Raises:
        RequestError: vLLM refuses it.
        EngineError: the engine died.
    """
    defaults = engine.model_config.get_diff_sampling_param()
    room = engine.model_config.max_model_len - len(prompt.token_ids or ())
    with _refusals():
        params = request.to_sampling_params(max(1, min(request.max_tokens or room, room)), defaults)
        params.detokenize = detokenize or bool(params.stop)
        inputs, tokenization = _inputs(prompt), {"add_special_tokens": not prompt.is_rendered}
        final = None
        async for output in engine.generate(
            inputs, params, request_id, lora_request=lora, tokenization_kwargs=tokenization
        ):
            final = output
    return final


async def pool(
    engine: Any, prompt: Prompt, task: str, pooling: dict[str, Any], request_id: str, lora: Any
) -> tuple[list[float], int]:
    """What the pooler gives for one prompt, and the number of prompt tokens.

    Raises:
        RequestError: vLLM refuses it.
        EngineError: the engine died.
    """
    from vllm.pooling_params import PoolingParams

    with _refusals():
        params = PoolingParams(task=task, **pooling)
        tokenization = {"add_special_tokens": not prompt.is_rendered}
        final = None
        async for output in engine.encode(
            _inputs(prompt), params, request_id, lora_request=lora, tokenization_kwargs=tokenization
        ):
            final = output
    if final is None:
        raise EngineError("The engine gave no answer.")
    return final.outputs.data.float().tolist(), len(final.prompt_token_ids)


def labels(engine: Any) -> dict[int, str]:
    """Names of the classes by index, as the model's own configuration has them."""
    named = getattr(engine.model_config.hf_config, "id2label", None) or {}
    return {int(index): str(label) for index, label in named.items()}


def _inputs(prompt: Prompt) -> dict[str, Any]:
    inputs: dict[str, Any] = {"prompt": prompt.text}
    if prompt.token_ids is not None:
        inputs = {"prompt_token_ids": prompt.token_ids}
    if prompt.images:
        inputs["multi_modal_data"] = {"image": prompt.images}
    return inputs


@contextmanager
def _refusals() -> Iterator[None]:
    """What vLLM raises for one request, as ours."""
    from vllm.exceptions import GenerationError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except EngineDeadError:
        raise EngineError("The engine died.") from None
    except (EngineGenerateError, GenerationError) as error:
        raise RequestError(f"The engine failed on this request: {_in_one_line(error.__cause__ or error)}") from None
    except (VLLMClientError, ValueError, TypeError, NotImplementedError) as error:
        raise RequestError(_in_one_line(error)) from None


async def generate_one(engine: Any) -> None:
    """Generate one token after an arbitrary prompt of one token."""
    from vllm.sampling_params import SamplingParams

    async for _ in engine.generate({"prompt_token_ids": [1]}, SamplingParams(max_tokens=1), "rayllm-warm-up"):
        pass


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
