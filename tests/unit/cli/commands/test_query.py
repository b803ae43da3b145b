"""`rayllm query`: one prompt as text, files as JSON lines in which nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands.query import command
from rayllm.cli.terminal.output_files import FileError
from rayllm.client.api.errors import ServerError
from rayllm.errors import ConfigError
from tests.servers.openai import OpenAIServer, Script, chunk

BUSY = Script(503, {"error": {"message": "Full.", "code": "overloaded"}}, {"retry-after": "3"})


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def query(served: OpenAIServer, *arguments: str, stdin: str = "") -> Result:
    return CliRunner(env={"RAYLLM_URL": served.url}).invoke(command, list(arguments), input=stdin)


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


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
    [entry] = entries(query(served, "--json", "a").stdout)
    assert entry.pop("ttft_ms") <= entry.pop("e2e_ms")
    request = {"prompt": "a"}
    assert entry == {"line": 1, "request": request, "text": "é?", "finish_reason": "stop", "reasoning": "Hm."}


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


def test_a_files_answers_are_in_its_order_with_each_failure_in_its_place(served: OpenAIServer, tmp_path: Path) -> None:
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    user = {"role": "user", "content": "b"}
    lines = [{"prompt": "a", "max_tokens": 1}, {"messages": [user]}, {"prompt": "c", "model": "none"}]
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"prompt": 4}\n{"prompt": "e"}\n')
    result = query(served, "--file", str(file), "-o", str(output), "--concurrency", "2", "--stats")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "2 of 5 failed." in result.stderr
    assert "3 answered" in result.stderr
    found = entries(output.read_text())
    assert [entry["line"] for entry in found] == [1, 2, 3, 4, 5]
    assert [entry.get("text") for entry in found] == ["It ", "It is Paris. ", None, None, "It is Paris. "]
    assert found[1]["request"] == {"messages": [user]}
    assert found[1]["usage"]["completion_tokens"] == 3
    assert "The model `none` does not exist" in found[2]["error"]
    assert found[3]["error"] == "line 4 `prompt` must be a string, `messages` a list."
    assert not list(tmp_path.glob(".out*"))


def test_a_stream_that_breaks_leaves_what_came(served: OpenAIServer, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("a\nb\n")
    served.script(Script(events=(chunk(content="It"),), breaks=True))
    result = query(served, "--file", str(file), "--concurrency", "1")
    broken, whole = entries(result.stdout)
    assert (result.exit_code, broken["text"], whole["text"]) == (1, "It", "It is Paris. ")
    assert "the connection was lost" in broken["error"]
    assert "error" not in whole


def test_a_file_may_come_from_standard_input(served: OpenAIServer) -> None:
    result = query(served, "--file", "-", "--system", "s", stdin="a\nb\n")
    assert (result.exit_code, len(entries(result.stdout))) == (0, 2)
    assert sorted(body["messages"][1]["content"] for body in served.asked) == ["a", "b"]


def test_a_file_that_is_there_is_kept(served: OpenAIServer, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    result = query(served, "a", "-o", str(output))
    assert isinstance(result.exception, FileError)
    assert (output.read_text(), served.got) == ("old", [])
    assert query(served, "a", "-o", str(output), "--force").exit_code == 0
    assert [entry["text"] for entry in entries(output.read_text())] == ["It is Paris. "]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "takes one of PROMPT and --file"),
        (["a", "--file", "b"], "takes one of PROMPT and --file"),
        (["--raw", "--system", "s", "a"], "--system is for chat"),
        ([""], "PROMPT is empty"),
        (["a", "--force"], "--force is for a file"),
    ],
)
def test_wrong_calls_are_usage(served: OpenAIServer, arguments: list[str], expected: str) -> None:
    result = query(served, *arguments)
    assert (result.exit_code, served.got) == (2, [])
    assert expected in result.stderr


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_file_that_cannot_be_read_is_told(served: OpenAIServer, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "in.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert isinstance(query(served, "--file", str(file)).exception, ConfigError)


def test_ctrl_c_keeps_what_was_answered(served: OpenAIServer, tmp_path: Path) -> None:
    file, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    file.write_text("a\nb\nc\n")
    events = (chunk(content="It"), chunk("stop", content=" is."), "[DONE]")
    served.script(Script(events=events), Script(events=(chunk(content="It"),), waits=True))
    run = [sys.executable, "-m", "rayllm", "query", "--file", str(file), "--concurrency", "1", "-o", str(output)]
    env = {**os.environ, "RAYLLM_URL": served.url}
    with subprocess.Popen(run, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert served.waiting.wait(30)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in stderr) == (130, False)
    assert served.left.wait(5)
    answered, begun, not_asked = entries(output.read_text())
    assert (answered["text"], "error" in answered) == ("It is.", False)
    assert begun["error"] == not_asked["error"] == "it was interrupted before the completion ended."
    assert "text" not in not_asked
