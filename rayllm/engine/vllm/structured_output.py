"""Structured output in vLLM: what its grammar backend sees and can enforce."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from rayllm.engine.structured_output import OPTIONS
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.environment import max_stop_strings
from rayllm.engine.vllm.errors import http_error, one_line
from rayllm.errors import RayLLMError, RequestError

logger = logging.getLogger(__name__)


def grammar_vocabulary(engine: Any) -> str | None:
    """The tokenizer's vocabulary for xgrammar; None if the server uses another backend."""
    import xgrammar

    if engine.vllm_config.structured_outputs_config.backend != "xgrammar":
        return None
    try:
        tokenizer = engine.get_tokenizer()
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=engine.model_config.get_vocab_size())
    except Exception as error:
        # Mistral's own tokenizers are not supported by xgrammar.
        logger.warning("Constraints cannot be validated with this model's tokenizer: %s", one_line(error))
        return None
    text: str = info.serialize_json()
    return text


def as_compiled(grammar: str) -> tuple[str, str]:
    """The kind and the text of a grammar as vLLM passes it to its compiler.

    vLLM before 0.31 converts Lark to EBNF; later versions have the compiler read it.

    Raises:
        ValueError: it cannot be converted.
    """
    from vllm.v1.structured_output import utils

    if not utils.grammar_is_likely_lark(grammar):
        return "grammar", grammar
    if hasattr(utils, "convert_lark_to_ebnf"):
        return "grammar", str(utils.convert_lark_to_ebnf(grammar))
    return "lark", grammar


def can_enforce(schema: dict[str, Any]) -> bool:
    """Whether xgrammar can enforce the whole of a JSON schema, according to vLLM."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    return not has_xgrammar_unsupported_json_features(schema)


def enforced_options(engine: Any) -> frozenset[str]:
    """Options of `structured_outputs` that the server enforces for every request: vLLM ignores a request's own."""
    config = engine.vllm_config.structured_outputs_config
    enabled = {name for name in OPTIONS if getattr(config, name)}
    # xgrammar compiles schemas strictly: unnamed properties are not allowed.
    return frozenset(enabled | ({"disable_additional_properties"} if config.backend == "xgrammar" else set()))


def guard_generation(engine: Any, admit: Callable[[str, str, bool], Awaitable[None]]) -> None:
    """Call `admit` with every constraint before the engine compiles it, and raise on failed generations.

    vLLM's serving classes mistake an output that ends with an error before its first token for one still to come, and
    end the stream as if all were well.

    Args:
        engine: an AsyncLLM; its `generate` is replaced.
        admit: called with the kind and the text of a constraint, and whether vLLM has refused the request; raises a
            RayLLMError for one that the engine cannot compile.
    """
    from vllm.exceptions import VLLMValidationError

    original = engine.generate

    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        await _admit(sampling_params.structured_outputs, admit, False)
        _check_stops(sampling_params, engine)
        async with aclosing(original(prompt, sampling_params, *args, **kwargs)) as outputs:
            try:
                async for output in outputs:
                    if any(one.finish_reason == "error" for one in output.outputs):
                        raise moved_names.load("GenerationError")
                    yield output
            except VLLMValidationError:
                # vLLM may say no more than that the constraint is invalid.
                await _admit(sampling_params.structured_outputs, admit, True)
                raise

    engine.generate = generate


def _check_stops(params: Any, engine: Any) -> None:
    """Check a request's stops. vLLM does so itself from 0.29 on; before, an unknown token could stop the engine."""
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


async def _admit(structured: Any, admit: Callable[[str, str, bool], Awaitable[None]], is_refused: bool) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.structured_output.request import get_structured_output_key

    if structured is None or structured.all_constraints_none():
        return
    kind, spec = get_structured_output_key(structured)
    try:
        await admit(kind.name.lower(), spec, is_refused)
    except RequestError as error:
        raise VLLMValidationError(error.message, parameter=error.param) from None
    except RayLLMError as error:
        raise http_error(error.message, error.status) from None
