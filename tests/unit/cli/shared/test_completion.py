"""Completions, put together from the chunks of many servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rayllm.cli.shared import completion as module
from rayllm.cli.shared.completion import CallPart, Completion, Delta
from rayllm.cli.shared.server import Server
from tests.fakes.clock import Clock
from tests.servers.openai import OpenAIServer, Script, chunk


def received(served: OpenAIServer, *events: Any) -> tuple[Completion, list[Delta]]:
    completion, deltas = Completion(), list[Delta]()
    served.script(Script(events=(*events, chunk("stop"), "[DONE]")))
    completion.receive(Server(served.url), {"model": "small", "messages": []}, deltas.append)
    return completion, deltas


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (chunk(content="a"), [Delta("a")]),
        (chunk(role="assistant", content=""), []),
        (chunk(role="assistant", content=None), []),
        (chunk(reasoning="r"), [Delta("", "r")]),
        (chunk(role="assistant", reasoning_content="r"), [Delta("", "r")]),
        (chunk(content="a", reasoning="r"), [Delta("a", "r")]),
        (chunk(refusal="no"), [Delta("no")]),
        ({"choices": [], "usage": {}}, []),
        ({"choices": []}, []),
        ({"choices": [{"index": 0, "delta": None}]}, []),
        ({"choices": [1]}, []),
        (chunk(content=5), []),
        (chunk(tool_calls=[{"index": 0, "id": "c"}]), [Delta("", "", (CallPart(0, "c", "", ""),))]),
        ({"choices": [], "usage": 3}, []),
    ],
)
def test_a_chunk_adds_what_it_holds(served: OpenAIServer, event: dict[str, Any], found: list[Delta]) -> None:
    assert received(served, event)[1] == found


def test_a_completion_of_a_raw_prompt_has_text(served: OpenAIServer) -> None:
    completion = Completion()
    completion.receive(Server(served.url), {"model": "small", "prompt": "a"})
    assert (completion.text, completion.finish_reason) == ("It is Paris. ", "stop")


def test_the_first_token_is_timed_from_the_request(served: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from before it, when the `openai` package is imported and connects."""
    connected, clock = Server._connected, Clock()

    @contextmanager
    def slowly(server: Server) -> Iterator[Any]:
        clock.now += 0.5
        with connected(server) as client:
            yield client

    monkeypatch.setattr(Server, "_connected", slowly)
    monkeypatch.setattr(module, "time", clock)
    completion, _ = received(served, chunk(content="a"))
    assert completion.e2e_s == 0


def test_an_answer_is_all_of_its_pieces(served: OpenAIServer) -> None:
    completion, _ = received(
        served,
        chunk(role="assistant", content=""),
        chunk(reasoning="Hm"),
        chunk(reasoning="m."),
        chunk(content="Pa"),
        chunk(content="ris"),
        {"choices": [], "usage": {"completion_tokens": 4}},
    )
    assert (completion.text, completion.reasoning, completion.finish_reason) == ("Paris", "Hmm.", "stop")
    assert (completion.usage, completion.is_complete) == ({"completion_tokens": 4}, True)
    assert completion.as_message() == {"role": "assistant", "content": "Paris"}


def part(number: int, **function: str) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": number, "id": f"call_{number}", "function": function}])


def test_tool_calls_are_put_together_by_their_number(served: OpenAIServer) -> None:
    completion, _ = received(
        served,
        part(0, name="f", arguments=""),
        part(0, arguments='{"a"'),
        part(1, name="g"),
        part(0, arguments=": 1}"),
    )
    assert completion.as_message() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": ""}},
        ],
    }
