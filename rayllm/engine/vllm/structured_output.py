"""Structured output in vLLM: what its grammar backend sees and can enforce."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from rayllm.engine.structured_output import OPTIONS
from rayllm.engine.vllm.errors import one_line
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


def as_ebnf(grammar: str) -> str:
    """A grammar in EBNF, as vLLM passes it to its compiler: Lark is converted.

    Raises:
        ValueError: it cannot be converted.
    """
    from vllm.v1.structured_output.utils import convert_lark_to_ebnf, grammar_is_likely_lark

    return str(convert_lark_to_ebnf(grammar)) if grammar_is_likely_lark(grammar) else grammar


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
                # vLLM may say no more than that the constraint is invalid.
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
