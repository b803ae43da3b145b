"""Checks of a prompt's length against the context."""

from __future__ import annotations

import pytest
from vllm.exceptions import VLLMValidationError

from rayllm.core.endpoints import CHAT, MESSAGES
from rayllm.engine.vllm.context_length import check_length, say_too_long


@pytest.mark.parametrize(("prompt", "asked"), [(99, 0), (99, 1), (1, 99)])
def test_what_fits_is_admitted(prompt: int, asked: int) -> None:
    check_length(prompt, asked, 100, CHAT)


def test_prompt_and_answer_together_are_too_long() -> None:
    with pytest.raises(VLLMValidationError, match=r"requested 101 tokens \(90 in the prompt, 11 in the answer\)"):
        check_length(90, 11, 100, CHAT)
    sentence = r"input length and `max_tokens` exceed context limit: 90 \+ 11 > 100"
    with pytest.raises(VLLMValidationError, match=sentence):
        check_length(90, 11, 100, MESSAGES)


def test_each_api_has_its_words_for_a_prompt_that_is_too_long() -> None:
    with pytest.raises(VLLMValidationError) as caught:
        check_length(100, 0, 100, MESSAGES)
    assert say_too_long(caught.value, MESSAGES, 100) == "prompt is too long: 100 tokens > 99 maximum"
    text = VLLMValidationError("x", parameter="input_text", value=1000)
    assert say_too_long(text, MESSAGES, 100) == "prompt is too long: 250 tokens > 99 maximum"
    assert "your prompt has 1000 characters" in str(say_too_long(text, CHAT, 100))
    assert say_too_long(VLLMValidationError("x", parameter="top_p", value=1), CHAT, 100) is None
