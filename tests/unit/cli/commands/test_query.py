"""`rayllm query`: one prompt, answered as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands.query import command
from rayllm.cli.shared.server import ServerError
from tests.servers.openai import OpenAIServer, Script, chunk

BUSY = Script(503, {"error": {"message": "Full.", "code": "overloaded"}}, {"retry-after": "3"})


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def query(served: OpenAIServer, *arguments: str, stdin: str = "") -> Result:
    return CliRunner(env={"RAYLLM_URL": served.url}).invoke(command, list(arguments), input=stdin)


def test_one_prompt_is_answered_as_text(served: OpenAIServer) -> None:
    result = query(served, "What is it?")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "It is Paris. \n", "model: small\n")
    assert served.asked[0]["messages"] == [{"role": "user", "content": "What is it?"}]


def test_a_prompt_may_come_from_standard_input(served: OpenAIServer) -> None:
    assert query(served, "-", stdin="one\ntwo\n").exit_code == 0
    assert served.asked[0]["messages"] == [{"role": "user", "content": "one\ntwo"}]


def test_options_are_what_the_server_is_asked(served: OpenAIServer) -> None:
    options = ["--max-tokens", "2", "--temperature", "0", "--seed", "3", "--stop", "x", "--stop", "y"]
    result = query(served, "a", "--model", "small:pirate", "--system", "Be short.", *options)
    assert (result.stdout, result.stderr) == ("It is \n", "")
    assert served.asked[0] == {
        "model": "small:pirate",
        "max_tokens": 2,
        "temperature": 0,
        "seed": 3,
        "stop": ["x", "y"],
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "a"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_raw_prompt_is_continued_as_it_is(served: OpenAIServer) -> None:
    assert query(served, "--raw", "a").stdout == "It is Paris. \n"
    assert served.got[-1].path == "/v1/completions"
    assert served.asked[0]["prompt"] == "a"


def test_an_answer_that_was_cut_off_says_so(served: OpenAIServer) -> None:
    served.script(Script(events=(chunk(content="It"), chunk("length"))))
    result = query(served, "a", "--model", "small")
    assert (result.stdout, result.stderr) == ("It\n", "the completion was cut off at the maximum number of tokens.\n")


def test_reasoning_is_for_terminals(served: OpenAIServer) -> None:
    served.script(Script(events=(chunk(reasoning="Hm."), chunk(content="Paris"), chunk("stop"))))
    assert query(served, "a").stdout == "Paris\n"


def test_one_answer_as_json(served: OpenAIServer) -> None:
    served.script(Script(events=(chunk(reasoning="Hm."), chunk(content="é\ud800"), chunk("stop"))))
    entry = json.loads(query(served, "--json", "a").stdout)
    assert entry.pop("ttft_ms") <= entry.pop("e2e_ms")
    assert entry == {"text": "é?", "finish_reason": "stop", "reasoning": "Hm."}


def test_stats_are_told_beside_the_answer(served: OpenAIServer) -> None:
    result = query(served, "a", "--model", "small", "--stats")
    assert result.stdout == "It is Paris. \n"
    assert "first token after" in result.stderr
    assert "3 tokens" in result.stderr


def test_a_failure_of_one_prompt_is_the_commands(served: OpenAIServer) -> None:
    served.script(BUSY)
    result = query(served, "a", "--model", "small")
    assert isinstance(result.exception, ServerError)
    assert result.exception.message.endswith("Full.\nhint: try again in 3 s.")
    wrong = query(served, "a", "--model", "smal")
    assert isinstance(wrong.exception, ServerError)
    assert "did you mean `small`?" in wrong.exception.message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "Missing argument 'PROMPT'"),
        (["--raw", "--system", "s", "a"], "--system is for chat"),
        ([""], "PROMPT is empty"),
    ],
)
def test_wrong_calls_are_usage(served: OpenAIServer, arguments: list[str], expected: str) -> None:
    result = query(served, *arguments)
    assert (result.exit_code, served.got) == (2, [])
    assert expected in result.stderr
