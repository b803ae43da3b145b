"""Continuing a stream that another engine has begun, from the log of its tokens.

The request passes through vLLM's serving classes as it did there. The logged tokens come first, in the same groups, so
the classes write the same events again; the engine continues from the prompt and these tokens.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from copy import copy
from typing import Any

from rayllm.core.token_log import TokenGroup, TokenLog, tokens_of
from rayllm.engine.vllm.resumed_grammars import GENERATED, are_resumed

# The highest number of biased tokens in a request that vLLM's runner for GPUs takes.
_MAX_BIASES = 1024


def log_streams(engine: Any, token_log: Callable[[], TokenLog | None]) -> None:
    """Log what the engine generates, and continue replies whose log is not empty.

    Args:
        engine: the AsyncLLM, whose `generate` and `_add_request` are replaced.
        token_log: returns the log of the current request; None if its reply has none.
    """
    _log_outputs(engine, token_log)
    _continue_requests(engine, token_log)


def _log_outputs(engine: Any, token_log: Callable[[], TokenLog | None]) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    original, config = engine.generate, engine.vllm_config.structured_outputs_config
    # Behind reasoning, a grammar applies from a token in the middle of the reply.
    resumes_grammars = are_resumed() and (not config.reasoning_parser or bool(config.enable_in_reasoning))
    # vLLM ignores biases where it checks the tokens of a draft.
    takes_biases = engine.vllm_config.speculative_config is None

    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        log = token_log()
        if log:
            log.open(_is_continuable(sampling_params, resumes_grammars, takes_biases))
        async with aclosing(original(prompt, sampling_params, *args, **kwargs)) as outputs:
            try:
                async for output in outputs:
                    if log:
                        _append(log, output.outputs[0])
                    yield output
            except EngineDeadError:
                if log:
                    log.engine_is_lost = True
                raise

    engine.generate = generate


def _is_continuable(params: Any, resumes_grammar: bool, takes_biases: bool) -> bool:
    """Whether an engine that gets the prompt and the first tokens continues as if it had generated the tokens itself.

    `repetition_penalty` counts the prompt's tokens, too; the other penalties only count generated tokens. Biases
    replace `frequency_penalty`, unless `repetition_penalty` would scale the biases.
    """
    can_be_biases = takes_biases and params.repetition_penalty == 1
    has_penalties = params.presence_penalty or (params.frequency_penalty and not can_be_biases)
    has_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
    if _has_grammar(params) and not resumes_grammar:
        return False
    return params.n == 1 and not (has_penalties or has_logprobs or params.extra_args)


def _has_grammar(params: Any) -> bool:
    return params.structured_outputs is not None and not params.structured_outputs.all_constraints_none()


def _append(log: TokenLog, output: Any) -> None:
    stop = output.stop_reason
    # vLLM finds a stop text again when the tokens are repeated.
    reason = "" if isinstance(stop, str) else output.finish_reason or ""
    if reason == "abort":
        # The engine is being stopped; a client that leaves ends the generator before it sees this.
        log.engine_is_lost = True
        return
    if reason not in ("", "stop", "length"):
        log.open(is_continuable=False)
        return
    log.append(TokenGroup(tuple(output.token_ids), reason, stop if isinstance(stop, int) else None))


def _continue_requests(engine: Any, token_log: Callable[[], TokenLog | None]) -> None:
    add_request = engine._add_request
    continuing: set[asyncio.Task[None]] = set()

    async def add(request: Any, prompt: str | None, parent: Any, index: int, queue: Any) -> None:
        log = token_log()
        if log is None or not log.earlier or not log.is_continuable:
            await add_request(request, prompt, parent, index, queue)
            return
        engine.output_processor.add_request(request, prompt, parent, index, queue)
        task = asyncio.create_task(_continue(engine, request, queue, log.earlier))
        continuing.add(task)
        task.add_done_callback(continuing.discard)

    engine._add_request = add


async def _continue(engine: Any, request: Any, queue: Any, groups: list[TokenGroup]) -> None:
    try:
        if await _repeat(engine.output_processor, request.request_id, queue, groups):
            await engine.engine_core.add_request_async(_remaining(request, tokens_of(groups)))
    except Exception as error:
        queue.put(error)


async def _repeat(processor: Any, request_id: str, queue: Any, groups: list[TokenGroup]) -> bool:
    """Process the groups like output of the engine; returns whether the reply needs more tokens."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    reasons = {"": None, "stop": FinishReason.STOP, "length": FinishReason.LENGTH}
    for group in groups:
        state = processor.request_states.get(request_id)
        if state is None:
            # The client has left, or the text has stopped the reply.
            return False
        if state.stats is not None:
            state.stats.num_generation_tokens += len(group.token_ids)
        output = EngineCoreOutput(
            request_id, list(group.token_ids), finish_reason=reasons[group.finish_reason], stop_reason=group.stop_token
        )
        processor.process_outputs([output])
        # Otherwise vLLM merges the outputs, and the events would be others.
        while queue.output is not None:  # noqa: ASYNC110 (vLLM's queue has no event for it)
            await asyncio.sleep(0)
    state = processor.request_states.get(request_id)
    if state is not None:
        state.is_prefilling = True
    return state is not None


def _remaining(request: Any, tokens: list[int]) -> Any:
    """The request for the rest of a reply that begins with `tokens`. Raises ValueError for too many biases."""
    params = request.sampling_params.clone()
    params.max_tokens -= len(tokens)
    params.min_tokens = max(0, params.min_tokens - len(tokens))
    if params.frequency_penalty:
        params.logit_bias = _with_penalties(params.logit_bias or {}, params.frequency_penalty, tokens)
    if _has_grammar(params):
        params.extra_args = {GENERATED: len(tokens)}
    remaining = copy(request)
    remaining.prompt_token_ids = [*request.prompt_token_ids, *tokens]
    remaining.sampling_params = params
    return remaining


def _with_penalties(bias: dict[int, float], penalty: float, tokens: list[int]) -> dict[int, float]:
    """A request's `logit_bias` with the `frequency_penalty` of the tokens generated so far."""
    penalized = bias | {token: bias.get(token, 0.0) - penalty * count for token, count in Counter(tokens).items()}
    if len(penalized) > _MAX_BIASES:
        raise ValueError(f"The stream would continue with {len(penalized)} biased tokens; vLLM takes {_MAX_BIASES}.")
    return penalized
