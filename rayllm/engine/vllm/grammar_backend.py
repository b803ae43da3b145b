"""The grammar backend of engines: guidance, and xgrammar for structural tags and EBNF.

vLLM has one backend an engine. guidance enforces or refuses a JSON schema, while xgrammar drops keywords; but only
xgrammar reads EBNF and the structural tags that vLLM makes of tools. So RayLLM's engines have both behind guidance's
name: the masks of both have the same form.
"""

from functools import cached_property
from typing import Any

GUIDANCE, XGRAMMAR = "guidance", "xgrammar"


def backend_of(kind: str, text: str) -> str:
    """The backend for a constraint's kind, a name of StructuredOutputOptions in lower case, and text."""
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    if kind == "structural_tag" or (kind == "grammar" and not grammar_is_likely_lark(text)):
        return XGRAMMAR
    return GUIDANCE


def takes_guidance(tokenizer: Any) -> bool:
    """Whether guidance reads a tokenizer: a fast one, or Mistral's Tekken."""
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast) or bool(getattr(tokenizer, "is_tekken", False))


def join_backends() -> None:
    """Have engines and the validation of requests in this process use both backends under guidance's name."""
    from vllm.v1 import structured_output
    from vllm.v1.structured_output import backend_guidance, backend_xgrammar
    from vllm.v1.structured_output.request import get_structured_output_key

    def validate(sampling_params: Any, *args: Any, **kwargs: Any) -> None:
        kind, text = get_structured_output_key(sampling_params.structured_outputs)
        # The gate has compiled with guidance what guidance enforces, outside of the event loop.
        if backend_of(kind.name.lower(), text) == XGRAMMAR:
            backend_xgrammar.validate_xgrammar_grammar(sampling_params)

    if structured_output.GuidanceBackend is backend_guidance.GuidanceBackend:
        structured_output.GuidanceBackend = _joint_backend()
        backend_guidance.validate_guidance_grammar = validate


def _joint_backend() -> type:
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    class JointBackend(GuidanceBackend):  # type: ignore[misc]
        @cached_property
        def _xgrammar(self) -> Any:
            return XgrammarBackend(self.vllm_config, tokenizer=self.tokenizer, vocab_size=self.vocab_size)

        def compile_grammar(self, request_type: Any, grammar_spec: str, *args: Any, **kwargs: Any) -> Any:
            if backend_of(request_type.name.lower(), grammar_spec) == XGRAMMAR:
                return self._xgrammar.compile_grammar(request_type, grammar_spec, *args, **kwargs)
            grammar = super().compile_grammar(request_type, grammar_spec, *args, **kwargs)
            if error := grammar.ll_matcher.get_error():
                raise ValueError(error)
            return ClosedGrammar(grammar.ll_matcher, grammar.ll_tokenizer, grammar.vocab_size)

    class ClosedGrammar(GuidanceGrammar):  # type: ignore[misc]
        """A grammar that fails at guidance's limits, where guidance's own grammar allows the end of the text."""

        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            return bool(super().accept_tokens(request_id, tokens)) and not self.ll_matcher.is_error()

    return JointBackend
