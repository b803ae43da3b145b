"""Generation and pooling on the engine, without HTTP."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rayllm.core.errors import EngineError, RequestError
from rayllm.engine.vllm.errors import request_errors
from rayllm.engine.vllm.request_validation import lenient_validator


@dataclass(frozen=True)
class Prompt:
    """Text or token ids, with images. `is_rendered` marks text of a chat template, with its special tokens."""

    text: str = ""
    token_ids: list[int] | None = None
    images: list[Any] = field(default_factory=list)
    is_rendered: bool = False


def completion_request(body: dict[str, Any]) -> Any:
    """Parse a completion request with vLLM. Raises RequestError with vLLM's message for an invalid field."""
    max_tokens = body.get("max_tokens")
    try:
        with request_errors():
            request = _completion_validator().validate_python(body)
    except RequestError as error:
        raise RequestError(f"sampling_params: {error.message}", "sampling_params") from None
    # vLLM's default is 16 tokens; a row may use the rest of the context.
    request.max_tokens = max_tokens
    return request


@cache
def _completion_validator() -> Any:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return lenient_validator(CompletionRequest.__pydantic_core_schema__)


async def generate(engine: Any, prompt: Prompt, request: Any, request_id: str, lora: Any, detokenize: bool) -> Any:
    """Generate for one prompt and a `completion_request`; returns vLLM's final RequestOutput.

    Without `detokenize`, the answer has a text only for a stop text.

    Raises:
        RequestError: vLLM refuses the request.
        EngineError: the engine died.
    """
    defaults = engine.model_config.get_diff_sampling_param()
    room = engine.model_config.max_model_len - len(prompt.token_ids or ())
    with request_errors():
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
    """Pool one prompt; returns the vector and the number of prompt tokens.

    Raises:
        RequestError: vLLM refuses the request.
        EngineError: the engine died.
    """
    from vllm.pooling_params import PoolingParams

    with request_errors():
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


def _inputs(prompt: Prompt) -> dict[str, Any]:
    inputs: dict[str, Any] = {"prompt": prompt.text}
    if prompt.token_ids is not None:
        inputs = {"prompt_token_ids": prompt.token_ids}
    if prompt.images:
        inputs["multi_modal_data"] = {"image": prompt.images}
    return inputs
