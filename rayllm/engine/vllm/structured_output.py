"""Structured output in vLLM: the choice of the grammar backend, and checks of constraints and answers."""

import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from copy import copy
from typing import Any

from rayllm.core.errors import RayLLMError, RequestError
from rayllm.engine.structured_output.gate import ConstraintGate, Options
from rayllm.engine.vllm import grammar_backend, moved_names
from rayllm.engine.vllm.answer_checks import CutAnswers, IsSatisfied, UnendedReasoning
from rayllm.engine.vllm.environment import max_stop_strings
from rayllm.engine.vllm.errors import http_error, one_line

logger = logging.getLogger(__name__)


def grammar_vocabulary(engine: Any) -> str | None:
    """The tokenizer's vocabulary for xgrammar; None if xgrammar does not read the tokenizer."""
    import xgrammar

    try:
        tokenizer = engine.get_tokenizer()
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=engine.model_config.get_vocab_size())
    except Exception as error:
        # Mistral's own tokenizers are not supported by xgrammar.
        logger.warning("Constraints cannot be validated with this model's tokenizer: %s", one_line(error))
        return None
    text: str = info.serialize_json()
    return text


def server_options(engine: Any) -> Options:
    """The server's options of `structured_outputs`, for all requests."""
    config = engine.vllm_config.structured_outputs_config
    return Options(None, config.disable_any_whitespace, config.disable_additional_properties)


def choose_backend(config: Any) -> None:
    """Choose xgrammar, in an engine's configuration, for a tokenizer that guidance does not read."""
    from vllm.tokenizers import cached_tokenizer_from_config

    structured = config.structured_outputs_config
    if structured.backend != grammar_backend.GUIDANCE or config.model_config.skip_tokenizer_init:
        return
    if not grammar_backend.takes_guidance(cached_tokenizer_from_config(model_config=config.model_config)):
        logger.info("guidance does not read this model's tokenizer; xgrammar compiles its constraints.")
        structured.backend = grammar_backend.XGRAMMAR


def backend_of(engine: Any) -> Callable[[str, str], str]:
    """A function that returns an engine's backend for the kind and the text of a constraint."""
    name = engine.vllm_config.structured_outputs_config.backend
    return grammar_backend.backend_of if name == grammar_backend.GUIDANCE else lambda kind, text: str(name)


def guard_generation(engine: Any, gate: ConstraintGate, is_satisfied: IsSatisfied) -> None:
    """Have the AsyncLLM prepare constraints before the engine compiles, and raise if a generation fails.

    vLLM's serving classes end a stream without an error if the generation fails before the first token.
    """
    from vllm.exceptions import VLLMValidationError

    original = engine.generate

    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        with _as_vllm_errors():
            sampling_params = await _prepare(sampling_params, gate)
        _check_stops(sampling_params, engine)
        check = _check_of(sampling_params, engine, gate, is_satisfied, kwargs)
        async with aclosing(original(prompt, sampling_params, *args, **kwargs)) as outputs:
            try:
                async for output in outputs:
                    if any(one.finish_reason == "error" for one in output.outputs):
                        raise moved_names.load("GenerationError")
                    if check:
                        await check.check(output)
                    yield output
            except VLLMValidationError:
                # vLLM's message may only say that the constraint is invalid.
                if constraint := _constraint_of(sampling_params):
                    with _as_vllm_errors():
                        await gate.explain(*constraint)
                raise

    engine.generate = generate


def _check_of(
    params: Any, engine: Any, gate: ConstraintGate, is_satisfied: IsSatisfied, arguments: dict[str, Any]
) -> CutAnswers | UnendedReasoning | None:
    """The check of the answers to a request, if any; `arguments` are further arguments of `generate`."""
    constraint = _constraint_of(params)
    if constraint is None:
        return None
    if (config := engine.vllm_config.structured_outputs_config).reasoning_parser:
        # gpt-oss reasons within its constraints, as do all models if a constraint applies from the start.
        is_harmony = engine.model_config.hf_config.model_type == "gpt_oss"
        is_constrained = arguments.get("reasoning_ended") or config.enable_in_reasoning or is_harmony
        # Strict tools leave the text free.
        if is_constrained or (constraint[0] == "structural_tag" and not gate.forces_calls):
            return None
        return UnendedReasoning(params, engine, arguments.get("reasoning_parser_kwargs") or {})
    is_exact = backend_of(engine)(*constraint) == grammar_backend.GUIDANCE
    return CutAnswers(params, constraint, is_satisfied) if params.stop and is_exact else None


def _constraint_of(params: Any) -> tuple[str, str] | None:
    from vllm.v1.structured_output.request import get_structured_output_key

    structured = params.structured_outputs
    if structured is None or structured.all_constraints_none():
        return None
    kind, text = get_structured_output_key(structured)
    return kind.name.lower(), text


def _check_stops(params: Any, engine: Any) -> None:
    """Check a request's stops as vLLM does from 0.29 on: before, an unknown token could stop the engine."""
    from vllm.exceptions import VLLMValidationError

    if moved_names.has("GracefulHTTPError"):
        return
    most = max_stop_strings()
    if isinstance(params.stop, list) and len(params.stop) > most:
        raise VLLMValidationError(f"at most {most} stop strings are allowed", parameter="stop")
    if not params.stop_token_ids:
        return
    size = engine.model_config.get_vocab_size()
    if unknown := [token for token in params.stop_token_ids if not 0 <= token < size]:
        raise VLLMValidationError(f"token ids {unknown} are not in the vocabulary", parameter="stop_token_ids")


async def _prepare(params: Any, gate: ConstraintGate) -> Any:
    """SamplingParams with the prepared constraint. Raises as `ConstraintGate.prepare`."""
    if (constraint := _constraint_of(params)) is None:
        gate.refuse_unforced_calls()
        return params
    asked = params.structured_outputs
    options = Options(asked.whitespace_pattern, asked.disable_any_whitespace, asked.disable_additional_properties)
    kind, text = await gate.prepare(*constraint, options)
    if kind == "json_object":
        return params
    # Rows of a batch share their parameters.
    prepared = copy(params)
    prepared.structured_outputs = type(asked)(**{kind: json.loads(text) if kind == "choice" else text})
    return prepared


@contextmanager
def _as_vllm_errors() -> Iterator[None]:
    """Raise RayLLM's errors in the block as exceptions that vLLM's serving classes answer with the same status."""
    from vllm.exceptions import VLLMValidationError

    try:
        yield
    except RequestError as error:
        raise VLLMValidationError(error.message, parameter=error.param) from None
    except RayLLMError as error:
        raise http_error(error.message, error.status) from None
