"""Grammars that go on from tokens which another engine has generated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.engine.vllm.resumed_grammars import GENERATED, accept_generated


class Grammar:
    """Accepts the numbers from 1 on, in order."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self.accepted += tokens
        return self.accepted == list(range(1, len(self.accepted) + 1))


def request(prompt: list[int], extra_args: dict[str, Any] | None) -> Any:
    params = SimpleNamespace(extra_args=extra_args)
    return SimpleNamespace(request_id="id", prompt_token_ids=prompt, sampling_params=params)


@pytest.mark.parametrize(("extra_args", "accepted"), [(None, []), ({"other": 9}, []), ({GENERATED: 2}, [1, 2])])
def test_tokens_of_the_reply_in_the_prompt_are_accepted(extra_args: dict[str, Any] | None, accepted: list[int]) -> None:
    grammar = Grammar()
    accept_generated(grammar, request([7, 8, 1, 2], extra_args))
    assert grammar.accepted == accepted


def test_tokens_of_another_grammar_fail_the_request() -> None:
    with pytest.raises(ValueError, match="does not accept the 3 tokens"):
        accept_generated(Grammar(), request([7, 8, 1, 2], {GENERATED: 3}))
