"""Resumes grammars after tokens that another engine has generated.

vLLM starts a grammar at the first token that it generates itself. For a request with tokens of the reply at the end of
the prompt, the grammar must accept these tokens first.
"""

from functools import wraps
from typing import Any

GENERATED = "rayllm_generated_tokens"
"""The key in a request's `extra_args` with the number of tokens at the end of the prompt that belong to the reply."""


def resume_grammars() -> None:
    """Have the grammars in this process accept the tokens of the reply that a request has."""
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
    """Whether `resume_grammars` has run in this process, and so in the engine's process."""
    from vllm.v1.structured_output import StructuredOutputManager

    return hasattr(StructuredOutputManager._create_grammar, "__wrapped__")


def accept_generated(grammar: Any, request: Any) -> None:
    """Have a new grammar accept the tokens of the reply in the prompt of vLLM's Request.

    Raises:
        ValueError: the tokens do not come from this grammar; vLLM fails only this request.
    """
    count = (request.sampling_params.extra_args or {}).get(GENERATED, 0)
    tokens = list(request.prompt_token_ids[-count:]) if count else []
    if tokens and not grammar.accept_tokens(request.request_id, tokens):
        raise ValueError(f"The grammar does not accept the {count} tokens that the request continues from.")
