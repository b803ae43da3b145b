"""Files of prompts, and the requests that they become."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.client.api.request import RequestTemplate
from rayllm.client.prompt_file import Line, read_lines
from rayllm.errors import ConfigError

USER = {"role": "user", "content": "a"}


def test_plain_text_is_a_prompt_a_line() -> None:
    assert read_lines('one\r\n\n  two {"x"}\n') == [Line(1, {"prompt": "one"}), Line(3, {"prompt": '  two {"x"}'})]


def test_json_lines_keep_their_fields() -> None:
    text = '{"prompt": "a", "max_tokens": 3}\n\n{"messages": [], "model": "m"}'
    assert read_lines(text) == [
        Line(1, {"prompt": "a", "max_tokens": 3}),
        Line(3, {"messages": [], "model": "m"}),
    ]


def test_a_line_may_hold_other_separators_of_lines() -> None:
    assert read_lines('{"prompt": "a\u2028b\x85"}') == [Line(1, {"prompt": "a\u2028b\x85"})]


def test_an_empty_file_has_no_lines() -> None:
    assert read_lines(" \n\n") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"prompt": "a"', "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "needs one of"),
        ('{"prompt": "a", "messages": []}', "needs one of"),
        ('{"prompt": 1}', "must be a string"),
        ('{"messages": "a"}', "must be a string, `messages` a list"),
        ('{"prompt": "a", "n": 2}', "`n`: a line gets one completion"),
    ],
)
def test_a_faulty_line_says_what_is_wrong_and_spoils_no_other(line: str, expected: str) -> None:
    good, bad, other = read_lines(f'{{"prompt": "a", "n": 1}}\n{line}\n{{"prompt": "b"}}')
    assert (good.fault, other.fault) == ("", "")
    assert expected in bad.fault
    assert (bad.number, bad.request) == (2, {})


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({"prompt": "a"}, [{"role": "system", "content": "s"}, USER]),
        ({"messages": [USER]}, [{"role": "system", "content": "s"}, USER]),
        ({"messages": [{"role": "system", "content": "own"}, USER]}, [{"role": "system", "content": "own"}, USER]),
        ({"messages": [{"role": "developer", "content": "own"}]}, [{"role": "developer", "content": "own"}]),
    ],
)
def test_a_conversation_gets_a_system_message_unless_it_has_one(given: dict[str, Any], messages: list[Any]) -> None:
    assert RequestTemplate(system="s").fill("m", given)["messages"] == messages


def test_a_lines_own_fields_win_over_options() -> None:
    given = {"prompt": "a", "temperature": 1, "model": "own", "stream": False}
    body = RequestTemplate("completions", {"temperature": 0, "seed": 3}).fill("m", given)
    assert body == {
        "model": "own",
        "prompt": "a",
        "temperature": 1,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_completion_takes_no_messages() -> None:
    with pytest.raises(ConfigError, match="`messages` are for chat"):
        RequestTemplate("completions").fill("m", {"messages": [USER]})
