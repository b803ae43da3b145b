"""Grammars of requests that go on from tokens which another engine has generated.

vLLM starts a grammar at the first token that it generates itself. Where a request carries tokens of its reply at the
end of its prompt, the grammar has to have accepted them first.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

GENERATED = "rayllm_generated_tokens"
"""The key in a request's `extra_args` that says how many tokens at the end of its prompt belong to its reply."""


def resume_grammars() -> None:
    """Have the grammars of this process accept the tokens that a request brings along."""
    from vllm.v1.structured_output import StructuredOutputManager

    if are_resumed():
        return
    original = StructuredOutputManager._create_grammar

    @wraps(original)
    def create(self: Any, request: Any) -> Any:
        grammar = original(self, request)
        accept_generated(grammar, request)
        return grammar

    StructuredOutputManager._create_grammar = create


def are_resumed() -> bool:
    """Whether `resume_grammars` has run in this process, and so in its engine's, which loads the same plugins."""
    from vllm.v1.structured_output import StructuredOutputManager

    return hasattr(StructuredOutputManager._create_grammar, "__wrapped__")


def accept_generated(grammar: Any, request: Any) -> None:
    """Have a new grammar accept the tokens of the reply that are in the prompt of a Request of the engine's core.

    Raises:
        ValueError: it does not accept them, so they do not come from this grammar; vLLM fails this request only.
    """
    count = (request.sampling_params.extra_args or {}).get(GENERATED, 0)
    tokens = list(request.prompt_token_ids[-count:]) if count else []
    if tokens and not grammar.accept_tokens(request.request_id, tokens):
        raise ValueError(f"The grammar does not accept the {count} tokens that the request goes on from.")
