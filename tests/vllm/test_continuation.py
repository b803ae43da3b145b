"""Requests that go on from tokens which another engine has generated, against vLLM's own parameters and penalties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.sample.ops.penalties import apply_all_penalties

from rayllm.engine.vllm.continuation import _is_continuable, _remaining
from rayllm.engine.vllm.resumed_grammars import GENERATED

VOCABULARY = 50
PROMPT, EARLIER, LATER = [1, 2, 3], [7, 7, 7, 8, 9], [7, 9, 9, 20]


def remaining(**fields: Any) -> Any:
    """The request for what is left after the earlier tokens."""
    params = SamplingParams(max_tokens=20, **fields)
    return _remaining(SimpleNamespace(prompt_token_ids=PROMPT, sampling_params=params), EARLIER)


def penalized(logits: torch.Tensor, generated: list[int], penalty: float) -> torch.Tensor:
    """Logits, of shape (vocabulary,), after vLLM's `frequency_penalty` for the generated tokens."""
    none = torch.zeros(1)
    return apply_all_penalties(
        logits.clone()[None], torch.tensor([PROMPT]), none, torch.tensor([penalty]), torch.ones(1), [generated]
    )[0]


def test_the_earlier_tokens_end_the_prompt_and_are_not_generated_again() -> None:
    request = remaining(min_tokens=8)
    assert request.prompt_token_ids == [*PROMPT, *EARLIER]
    assert (request.sampling_params.max_tokens, request.sampling_params.min_tokens) == (15, 3)
    assert (request.sampling_params.logit_bias, request.sampling_params.extra_args) == (None, None)


def test_a_grammar_is_told_how_many_tokens_it_has_to_accept() -> None:
    request = remaining(structured_outputs=StructuredOutputsParams(regex="a+"))
    assert request.sampling_params.extra_args == {GENERATED: 5}


@pytest.mark.parametrize("penalty", [1.5, 0.3, -0.7])
def test_a_frequency_penalty_counts_the_earlier_tokens(penalty: float) -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)) * 10
    asked = {9: 2.5, 30: -1.0}
    biased = torch.tensor([asked.get(token, 0.0) for token in range(VOCABULARY)])
    expected = penalized(logits + biased, EARLIER + LATER, penalty)
    params = remaining(frequency_penalty=penalty, logit_bias=asked).sampling_params
    biased = torch.tensor([params.logit_bias.get(token, 0.0) for token in range(VOCABULARY)])
    found = penalized(logits + biased, LATER, params.frequency_penalty)
    torch.testing.assert_close(found, expected)


def test_more_biases_than_vllm_takes_are_refused() -> None:
    params = SamplingParams(max_tokens=5000, frequency_penalty=0.1)
    request = SimpleNamespace(prompt_token_ids=PROMPT, sampling_params=params)
    assert len(_remaining(request, list(range(1024))).sampling_params.logit_bias) == 1024
    with pytest.raises(ValueError, match="with 1025 biased tokens; vLLM takes 1024"):
        _remaining(request, list(range(1025)))


@pytest.mark.parametrize(
    ("fields", "is_continuable"),
    [
        ({}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"frequency_penalty": 0.1, "repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"n": 2, "temperature": 1.0}, False),
        ({"logprobs": 0}, False),
        ({"extra_args": {"a": 1}}, False),
    ],
)
def test_what_can_go_on(fields: dict[str, Any], is_continuable: bool) -> None:
    assert _is_continuable(SamplingParams(**fields), True, True) == is_continuable


def test_where_drafts_are_checked_no_bias_stands_in() -> None:
    assert not _is_continuable(SamplingParams(frequency_penalty=0.1), True, takes_biases=False)
    assert _is_continuable(SamplingParams(), True, takes_biases=False)


def test_a_grammar_goes_on_where_grammars_are_resumed() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    assert _is_continuable(params, True, True)
    assert not _is_continuable(params, False, True)
