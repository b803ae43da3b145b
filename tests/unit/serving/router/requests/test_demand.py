"""What a request reserves of its key's limit on tokens."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from rayllm.serving.router.requests.demand import demand_of, demand_of_form, whole_number

FIRST = {"role": "user", "content": "Why is the sky blue?"}


@pytest.mark.parametrize(
    ("path", "limits", "limit"),
    [
        (CHAT, {"max_completion_tokens": 1, "max_tokens": 8000}, 1),
        (CHAT, {"max_completion_tokens": None, "max_tokens": 8000}, 8000),
        (CHAT_BATCH, {"max_tokens": 8000, "max_output_tokens": 1}, 8000),
        (COMPLETIONS, {"max_completion_tokens": 1, "max_tokens": 8000}, 8000),
        (COMPLETIONS, {"max_completion_tokens": 1}, None),
        (RESPONSES, {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 8000}, 8000),
        (RESPONSES, {"max_tokens": 1}, None),
        (MESSAGES, {"max_completion_tokens": 1, "max_output_tokens": 1, "max_tokens": 8000}, 8000),
        (EMBEDDINGS, {"max_tokens": 8000}, 0),
        (TOKENIZE, {}, 0),
        # vLLM's schemas take these for numbers, too.
        (CHAT, {"max_tokens": "8000"}, 8000),
        (CHAT, {"max_tokens": " 8_000 "}, 8000),
        (CHAT, {"max_tokens": 8000.0}, 8000),
        (CHAT, {"max_tokens": "8000.0"}, 8000),
        (CHAT, {"max_tokens": True}, 1),
        (CHAT, {"max_tokens": -1}, 0),
        # No engine takes as many.
        (CHAT, {"max_tokens": "9" * 310}, 2**31),
        (CHAT, {"max_tokens": 10**400}, 2**31),
        # These it refuses.
        (CHAT, {"max_tokens": "many"}, None),
        (CHAT, {"max_tokens": 0.5}, None),
        (CHAT, {"max_tokens": []}, None),
    ],
)
def test_the_limit_of_an_answer_is_the_one_that_the_endpoint_reads(
    path: str, limits: dict[str, Any], limit: int | None
) -> None:
    assert demand_of(path, {"messages": [FIRST], **limits}).answer_limit == limit


@pytest.mark.parametrize("text", ["9" * 5000, "inf", "nan", "1e400", "", "0x10", "\ud800"])
def test_texts_that_are_no_numbers_are_none(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize(
    ("path", "body", "answers"),
    [
        (COMPLETIONS, {"prompt": "a"}, 1),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": ["a", "b", "c"]}, 3),
        (COMPLETIONS, {"prompt": [[1, 2, 3], [4, 5]], "n": 4}, 8),
        (COMPLETIONS, {"prompt": [], "n": "4"}, 4),
        (CHAT, {"messages": [FIRST], "n": 4}, 4),
        (CHAT, {"messages": [FIRST], "n": "128"}, 128),
        (CHAT_BATCH, {"messages": [[FIRST], [FIRST], [FIRST]]}, 3),
        (CHAT_BATCH, {"messages": [[FIRST], [FIRST]], "n": "many"}, 2),
        # They write one, whatever `n` says.
        (RESPONSES, {"input": "a", "n": 4}, 1),
        (MESSAGES, {"messages": [FIRST], "n": 4}, 1),
        (EMBEDDINGS, {"input": ["a", "b"]}, 0),
    ],
)
def test_answers_are_counted_as_the_endpoint_gives_them(path: str, body: dict[str, Any], answers: int) -> None:
    assert demand_of(path, body).answers == answers


LONG = "x" * 60_000
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {LONG: {}}}}}]},
        {"chat_template_kwargs": {"date_string": LONG}},
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
        {"prompt": list(range(15_000))},
        {"messages": [FIRST] * 3000},
    ],
)
def test_all_that_gets_into_the_prompt_counts(body: dict[str, Any]) -> None:
    assert demand_of(CHAT, body).prompt_bytes >= 60_000


def test_images_count_by_their_number_and_what_no_model_reads_not_at_all() -> None:
    chat = {"messages": [{"role": "user", "content": [IMAGE, IMAGE]}], "metadata": {"a": LONG}, "user": LONG}
    assert 2 * 4096 < demand_of(CHAT, chat).prompt_bytes < 2 * 4096 + 200
    score = {"query": {"content": [IMAGE]}, "documents": ["a"]}
    assert 4096 < demand_of("/score", score).prompt_bytes < 4096 + 200


def test_what_prompts_have_in_common_counts_for_each() -> None:
    scored = {"query": "x" * 1000, "documents": ["a"] * 50}
    assert demand_of("/rerank", scored).prompt_bytes >= 50_000
    pairs = {"text_1": ["x" * 1000] * 50, "text_2": ["a"] * 50}
    assert 50_000 <= demand_of("/score", pairs).prompt_bytes < 51_000
    batch = {"messages": [[FIRST]] * 50, "tools": [{"function": {"name": "f", "description": "x" * 1000}}]}
    assert demand_of(CHAT_BATCH, batch).prompt_bytes >= 50_000
    assert demand_of(CHAT, {**batch, "messages": [FIRST] * 50}).prompt_bytes < 10_000


def test_forms_count_by_the_length_of_their_sound() -> None:
    demand = demand_of_form(640_000, [("model", "m"), ("max_completion_tokens", "5")])
    assert (demand.prompt_bytes, demand.answers, demand.answer_limit) == (10_000, 1, 5)
    assert demand_of_form(0, []).answer_limit is None
