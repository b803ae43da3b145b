"""Limits on sampling parameters, checked before the engine gets the request.

vLLM's second model runner, for GPUs, has buffers of fixed sizes, and a request that does not fit ends the engine. The
limits also apply to the first runner: every model takes the same requests.
"""

import asyncio
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

# Seeds are signed in the second runner; each of `n` answers has the next seed.
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class SamplingLimits:
    """Most entries of each kind in one request."""

    allowed_token_ids: int
    logit_bias: int
    stop_token_ids: int
    bad_words: int
    bad_words_tokens: int


def sampling_limits() -> SamplingLimits:
    """The most entries that the installed vLLM has room for in its buffers."""
    from vllm import envs

    return SamplingLimits(
        allowed_token_ids=_size("logit_bias", "MAX_NUM_ALLOWED_TOKEN_IDS", 1024),
        logit_bias=_size("logit_bias", "MAX_NUM_LOGIT_BIAS_TOKENS", 1024),
        stop_token_ids=_size("logit_bias", "MAX_NUM_STOP_TOKEN_IDS", 128),
        # vLLM 0.26 has constants; later versions have environment variables.
        bad_words=_size("bad_words", "MAX_NUM_BAD_WORDS", getattr(envs, "VLLM_MAX_NUM_BAD_WORDS", 128)),
        bad_words_tokens=_size(
            "bad_words", "MAX_BAD_WORDS_TOTAL_TOKENS", getattr(envs, "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", 1024)
        ),
    )


def _size(module: str, name: str, default: int) -> int:
    try:
        return int(getattr(import_module(f"vllm.v1.worker.gpu.sample.{module}"), name, default))
    except ImportError:
        return default


def limit_sampling(engine: Any) -> None:
    """Check every request to an engine, after vLLM has added the model's stops and tokenized the bad words."""
    limits, processor = sampling_limits(), engine.input_processor
    original = processor.process_inputs

    def process_inputs(*args: Any, **kwargs: Any) -> Any:
        request = original(*args, **kwargs)
        check_sampling(request.sampling_params, limits)
        return request

    async def process_inputs_async(*args: Any, **kwargs: Any) -> Any:
        # vLLM's own method loses the context, which has the adapter whose stops count.
        work = partial(copy_context().run, process_inputs, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(processor.renderer._executor, work)

    processor.process_inputs = process_inputs
    # vLLM 0.26 processes all requests in the event loop.
    if hasattr(processor, "process_inputs_async"):
        processor.process_inputs_async = process_inputs_async


def check_sampling(params: Any, limits: SamplingLimits) -> None:
    """Check the SamplingParams, None without sampling. Raises VLLMValidationError with the field and the limit."""
    from vllm.exceptions import VLLMValidationError

    for field, what, count, most in _counts(params, limits) if params else ():
        if count > most:
            raise VLLMValidationError(f"`{field}` has {count} {what}; at most {most} are allowed.", parameter=field)
    if params and params.seed is not None and params.seed + params.n - 1 > _MAX_SEED:
        raise VLLMValidationError(
            f"`seed` must be at most {_MAX_SEED} for the last of `n` answers, each of which has the next seed.",
            parameter="seed",
        )


def _counts(params: Any, limits: SamplingLimits) -> Iterator[tuple[str, str, int, int]]:
    """Each limited field, with the name and the number of its items, and the limit."""
    yield "allowed_token_ids", "entries", len(params.allowed_token_ids or ()), limits.allowed_token_ids
    yield "logit_bias", "entries", len(params.logit_bias or ()), limits.logit_bias
    words = params.bad_words_token_ids or ()
    yield "bad_words", "words, counted with and without a space before them", len(words), limits.bad_words
    yield "bad_words", "tokens in all", sum(map(len, words)), limits.bad_words_tokens
    if params.min_tokens:
        what = "entries, including the model's, which `min_tokens` has to suppress"
        yield "stop_token_ids", what, len(params.all_stop_token_ids), limits.stop_token_ids
