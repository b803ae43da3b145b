"""Turns of a conversation, and what is sent for the next one."""

from __future__ import annotations

from rayllm.cli.commands.chat import Conversation
from rayllm.cli.shared.completion import Completion

TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_the_request_holds_all_that_was_said() -> None:
    talk = Conversation("m", "Be short.", [TOOL], {"temperature": 0})
    talk.say("a")
    assert talk.add(Completion("b", is_complete=True)) == []
    talk.say("c")
    assert talk.body() == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "tools": [TOOL],
        "temperature": 0,
    }


def test_tool_calls_wait_for_their_results() -> None:
    talk = Conversation("m")
    talk.say("a")
    assert talk.add(Completion(calls={0: CALL}, is_complete=True)) == [CALL]
    talk.add_result(CALL, "22")
    assert talk.messages[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "22"},
    ]
    talk.undo()
    assert talk.messages == []


def test_what_was_broken_off_counts_as_far_as_it_came() -> None:
    talk = Conversation("m")
    talk.say("a")
    assert talk.add(Completion("half", calls={0: CALL})) == []
    assert talk.messages[1:] == [{"role": "assistant", "content": "half"}]


def test_a_question_without_any_answer_is_taken_back() -> None:
    talk = Conversation("m")
    talk.say("a")
    talk.add(Completion("b", is_complete=True))
    talk.say("c")
    talk.add(Completion(calls={0: CALL}))
    assert [message["content"] for message in talk.messages] == ["a", "b"]
