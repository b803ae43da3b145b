"""Compiles constraints with guidance in the replica, before the engine does, to find faults."""

import asyncio
from functools import cached_property
from typing import Any

# Tokens to try: some grammars compile, but have no first token, or run into guidance's limits.
_STEPS = 16
_ALLOWED = 200


class ConstraintCompiler:
    """Compiles with guidance in threads: guidance releases the interpreter, and limits its own work.

    Kinds of constraints are names of StructuredOutputOptions, in lower case.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @cached_property
    def _backend(self) -> Any:
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend

        config = self._engine.vllm_config
        vocabulary = config.model_config.get_vocab_size()
        return GuidanceBackend(config, tokenizer=self._engine.get_tokenizer(), vocab_size=vocabulary)

    async def find_fault(self, kind: str, text: str) -> str | None:
        """A phrase for the fault of a constraint; None if the constraint can be compiled and has a first token."""
        return await asyncio.to_thread(self._find_fault, kind, text)

    async def is_satisfied(self, kind: str, text: str, answer: str) -> bool:
        """Whether a whole answer satisfies a constraint that has no fault."""
        return await asyncio.to_thread(self._is_satisfied, kind, text, answer)

    def _find_fault(self, kind: str, text: str) -> str | None:
        try:
            grammar = self._compile(kind, text)
        except (ValueError, TypeError) as error:
            return f"cannot be compiled: {_reason(str(error))}"
        matcher = grammar.ll_matcher
        for _ in range(_STEPS):
            if matcher.is_error() or matcher.is_stopped():
                break
            # One byte for each token of the vocabulary.
            if (token := matcher.compute_logit_bias().find(_ALLOWED)) >= 0:
                matcher.consume_token(token)
        return f"cannot be compiled: {_reason(matcher.get_error())}" if matcher.is_error() else None

    def _is_satisfied(self, kind: str, text: str, answer: str) -> bool:
        matcher = self._compile(kind, text).ll_matcher
        tokens = self._backend.ll_tokenizer.tokenize_str(answer)
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    def _compile(self, kind: str, text: str) -> Any:
        from vllm.v1.structured_output.backend_types import StructuredOutputOptions

        return self._backend.compile_grammar(StructuredOutputOptions[kind.upper()], text)


def _reason(error: str) -> str:
    """guidance's message in one line, without the state of its parser, excerpts, and hints for programmers."""
    lines = [line.strip() for line in error.split("<state>")[0].splitlines()]
    wordy = [line for line in lines if line.strip("^ ") and not line.startswith(("1 |", "2 |", "3 |", "4 |"))]
    said = next((line for line in wordy if line.startswith("error: ")), wordy[0] if wordy else "it leaves no answer")
    return said.removeprefix("error: ").split(". ")[0][:500].rstrip(".")
