"""What a request's body says about the choice of a replica."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayllm.routing import Ask, ask_of

SYSTEM = {"role": "system", "content": "You are helpful. " * 40}
FIRST = {"role": "user", "content": "Why is the sky blue?"}
FIELDS = [
    "messages",
    "input",
    "prompt",
    "system",
    "tools",
    "instructions",
    "query",
    "documents",
    "text_1",
    "max_tokens",
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


def asked(body: dict[str, Any], adapter: str = "") -> Ask:
    return ask_of(body, 0).of(adapter, "")


def chat(*messages: Any, **more: Any) -> Ask:
    return asked({"messages": list(messages), **more})


def shared(one: Ask, other: Ask) -> int:
    """Beginnings that two requests have in common."""
    return len(set(one.prefix) & set(other.prefix))


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(FIELDS), anything), st.integers(), st.text(), st.text())
def test_any_body_means_something(body: dict[str, Any], size: int, adapter: str, session: str) -> None:
    ask = ask_of(body, size).of(adapter, session)
    assert ask.work >= 1
    assert len(ask.prefix) == len(ask.sizes) <= 64
    assert list(ask.sizes) == sorted(ask.sizes)
    assert hash(ask) == hash(ask_of(body, size).of(adapter, session))


def test_depth_and_number_cost_nothing() -> None:
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    wide = [[[] for _ in range(1000)] for _ in range(1000)]
    assert asked({"messages": deep, "tools": deep}).work >= 1
    assert asked({"messages": wide, "input": wide, "prompt": {"a": wide}}).work >= 1
    # What is left of the depth must not be torn down by recursion.
    while deep != "end":
        deep = deep[0]


def test_the_turns_of_a_conversation_share_their_home_and_all_earlier_ones() -> None:
    turns: list[Any] = [SYSTEM, FIRST]
    asks = [chat(*turns)]
    for index in range(40):
        turns += [{"role": "assistant", "content": f"Answer {index}."}, {"role": "user", "content": f"And {index}?"}]
        asks.append(chat(*turns))
    assert len({ask.home for ask in asks}) == 1
    for earlier, later in pairwise(asks):
        assert earlier.prefix[-1] in later.prefix
    assert asks[0].home in asks[-1].prefix
    assert [ask.is_later_turn for ask in asks[:3]] == [False, True, True]


@pytest.mark.parametrize(
    "other",
    [
        chat(SYSTEM, {"role": "user", "content": "Why is the sea blue?"}),
        chat({**SYSTEM, "content": "You are rude."}, FIRST),
        chat(SYSTEM, FIRST, tools=[{"type": "function", "function": {"name": "look_up"}}]),
        asked({"messages": [SYSTEM, FIRST]}, adapter="poet"),
    ],
)
def test_other_conversations_have_other_homes(other: Ask) -> None:
    assert other.home != chat(SYSTEM, FIRST).home


def test_questions_on_a_document_share_its_home() -> None:
    document = "It was a dark and stormy night. " * 1000
    asks = [asked({"prompt": f"{document}\n\n{question}"}) for question in ("Who?", "Where was it, and when?", "Why?")]
    assert len({ask.home for ask in asks}) == 1
    assert shared(asks[0], asks[1]) >= 5
    assert asked({"prompt": "Another one. " * 3000}).home != asks[0].home


@pytest.mark.parametrize(
    "body",
    [
        {"input": "a text"},
        {"input": ["a text", "and another"]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a text"}]}]},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2, 3], [4, 5]]},
        {"query": "a text", "documents": ["one", "two"]},
        {"text_1": "a text", "text_2": "another"},
        {"system": "be brief", "messages": [{"role": "user", "content": [{"type": "text", "text": "a text"}]}]},
    ],
)
def test_every_kind_of_request_has_a_home(body: dict[str, Any]) -> None:
    assert asked(body).home in asked(body).prefix


def test_a_form_costs_by_its_size() -> None:
    assert ask_of({}, 256_000).work == 1001


def test_work_is_the_prompt_and_the_answer_it_may_have() -> None:
    assert asked({"prompt": "word " * 800, "max_tokens": 5}).work == pytest.approx(1006, abs=5)
    assert asked({"prompt": list(range(100_000)), "max_tokens": 0}).work == pytest.approx(100_000, abs=5)
    assert asked({"prompt": "x", "max_tokens": 10**9}).work < 1000


def test_an_image_costs_no_more_than_what_tells_it_apart() -> None:
    def image(pixels: str) -> Ask:
        url = f"data:image/png;base64,{pixels}"
        return chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})

    assert image("A" * 4_000_000).work < 2000
    assert image("A" * 4_000_000).home != image("A" * 3_999_999 + "B").home


def test_long_openings_are_groups_and_short_ones_are_not() -> None:
    long = {"role": "system", "content": "You work for the tenant. " * 500}
    assert chat(long, FIRST).group == chat(long, {"role": "user", "content": "Hello"}).group != 0
    assert chat(SYSTEM, FIRST).group == 0


def test_digests_are_the_same_in_every_process() -> None:
    code = "from rayllm.routing import ask_of; print(ask_of({'prompt': 'a text', 'system': 'b'}, 0).of('c', '').prefix)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(asked({"prompt": "a text", "system": "b"}, adapter="c").prefix)
