"""What a request's body says about the choice of a replica."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayllm.routing import RoutingRequest, routing_request

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


def routed(body: dict[str, Any], adapter: str = "") -> RoutingRequest:
    return routing_request(body, 0).with_target(adapter, "")


def chat(*messages: Any, **more: Any) -> RoutingRequest:
    return routed({"messages": list(messages), **more})


def shared(one: RoutingRequest, other: RoutingRequest) -> int:
    """Beginnings that two requests have in common."""
    return len(set(one.prefix_digests) & set(other.prefix_digests))


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(FIELDS), anything), st.integers(), st.text(), st.text())
def test_any_body_means_something(body: dict[str, Any], size: int, adapter: str, session: str) -> None:
    request = routing_request(body, size).with_target(adapter, session)
    assert request.work >= 1
    assert len(request.prefix_digests) == len(request.prefix_tokens) <= 64
    assert list(request.prefix_tokens) == sorted(request.prefix_tokens)
    assert hash(request) == hash(routing_request(body, size).with_target(adapter, session))


def test_depth_and_number_cost_nothing() -> None:
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    wide = [[[] for _ in range(1000)] for _ in range(1000)]
    assert routed({"messages": deep, "tools": deep}).work >= 1
    assert routed({"messages": wide, "input": wide, "prompt": {"a": wide}}).work >= 1
    # What is left of the depth must not be torn down by recursion.
    while deep != "end":
        deep = deep[0]


def test_the_turns_of_a_conversation_share_owner_and_prefixes() -> None:
    turns: list[Any] = [SYSTEM, FIRST]
    requests = [chat(*turns)]
    for index in range(40):
        turns += [{"role": "assistant", "content": f"Answer {index}."}, {"role": "user", "content": f"And {index}?"}]
        requests.append(chat(*turns))
    assert len({request.affinity_key for request in requests}) == 1
    for earlier, later in pairwise(requests):
        assert earlier.prefix_digests[-1] in later.prefix_digests
    assert requests[0].affinity_key in requests[-1].prefix_digests
    assert [request.is_follow_up for request in requests[:3]] == [False, True, True]


@pytest.mark.parametrize(
    "other",
    [
        chat(SYSTEM, {"role": "user", "content": "Why is the sea blue?"}),
        chat({**SYSTEM, "content": "You are rude."}, FIRST),
        chat(SYSTEM, FIRST, tools=[{"type": "function", "function": {"name": "look_up"}}]),
        routed({"messages": [SYSTEM, FIRST]}, adapter="poet"),
    ],
)
def test_other_conversations_have_other_homes(other: RoutingRequest) -> None:
    assert other.affinity_key != chat(SYSTEM, FIRST).affinity_key


def test_questions_on_a_document_share_its_home() -> None:
    document = "It was a dark and stormy night. " * 1000
    requests = [
        routed({"prompt": f"{document}\n\n{question}"}) for question in ("Who?", "Where was it, and when?", "Why?")
    ]
    assert len({request.affinity_key for request in requests}) == 1
    assert shared(requests[0], requests[1]) >= 5
    assert routed({"prompt": "Another one. " * 3000}).affinity_key != requests[0].affinity_key


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
    assert routed(body).affinity_key in routed(body).prefix_digests


def test_work_is_the_prompt_and_the_answer_it_may_have() -> None:
    assert routing_request({}, 4000, 5).work == 1006
    assert routing_request({}, 0, 10**9).work < 1000
    assert routing_request({}, 0).work > 100


def test_an_image_is_told_from_another() -> None:
    def image(pixels: str) -> RoutingRequest:
        url = f"data:image/png;base64,{pixels}"
        return chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})

    assert image("A" * 4_000_000).affinity_key != image("A" * 3_999_999 + "B").affinity_key


def test_only_long_openings_are_groups() -> None:
    long = {"role": "system", "content": "You work for the tenant. " * 500}
    assert chat(long, FIRST).group_key == chat(long, {"role": "user", "content": "Hello"}).group_key != 0
    assert chat(SYSTEM, FIRST).group_key == 0


def test_digests_are_the_same_in_every_process() -> None:
    request = "routing_request({'prompt': 'a text', 'system': 'b'}, 0).with_target('c', '')"
    code = f"from rayllm.routing import routing_request; print({request}.prefix_digests)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(routed({"prompt": "a text", "system": "b"}, adapter="c").prefix_digests)
