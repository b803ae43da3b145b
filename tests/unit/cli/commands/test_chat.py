"""`rayllm chat`: scripted on plain lines, and on a real terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands.chat import command
from rayllm.cli.shared.server import ServerError
from rayllm.core.errors import ConfigError
from tests.servers.openai import CALL, OpenAIServer, Script, chunk
from tests.servers.process import free_port

ANSWER = "It is Paris. "
BUSY = Script(503, {"error": {"message": "Full.", "code": "overloaded"}})
CALLS = Script(
    events=(
        chunk(role="assistant", content=""),
        chunk(tool_calls=[CALL]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '"Paris"}'}}]),
        chunk("tool_calls"),
        "[DONE]",
    )
)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def chat(served: OpenAIServer, lines: str, *arguments: str) -> Result:
    return CliRunner(env={"RAYLLM_URL": served.url}).invoke(command, list(arguments), input=lines)


def messages_of(served: OpenAIServer, turn: int = -1) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in served.asked[turn]["messages"]]


def test_each_line_is_a_message_of_one_conversation(served: OpenAIServer) -> None:
    result = chat(served, "one\n\ntwo", "--system", "Be short.", "--temperature", "0", "--max-tokens", "9")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{ANSWER}\n{ANSWER}\n", "model: small\n")
    assert messages_of(served) == [("system", "Be short."), ("user", "one"), ("assistant", ANSWER), ("user", "two")]
    assert (served.asked[-1]["temperature"], served.asked[-1]["max_tokens"]) == (0, 9)


def test_an_adapter_goes_on_with_the_conversation(served: OpenAIServer) -> None:
    result = chat(served, "one\n/model small:pirate\ntwo\n/model\n", "--model", "small")
    assert (result.exit_code, result.stderr) == (0, "model: small:pirate\nmodel: small:pirate\n")
    assert [body["model"] for body in served.asked] == ["small", "small:pirate"]
    assert messages_of(served) == [("user", "one"), ("assistant", ANSWER), ("user", "two")]


def test_a_model_that_there_is_not_is_refused_with_the_one_that_was_meant(served: OpenAIServer) -> None:
    result = chat(served, "/model small:pirat\none\n")
    assert result.exit_code == 1
    assert "there is no model `small:pirat`: did you mean `small:pirate`?" in result.stderr
    assert served.asked[-1]["model"] == "small"


def test_commands_change_what_is_said(served: OpenAIServer) -> None:
    chat(served, "one\n/clear\n/system Be short.\ntwo\n/system\n//three\n/exit\nfour\n")
    assert len(served.asked) == 3
    assert messages_of(served, 1) == [("system", "Be short."), ("user", "two")]
    assert messages_of(served, 2) == [("user", "two"), ("assistant", ANSWER), ("user", "/three")]


def test_models_and_help_are_shown(served: OpenAIServer) -> None:
    result = chat(served, "/models\n/help\n")
    assert "adapter of small" in result.stdout
    assert "/system TEXT  set the system message" in result.stdout


def test_an_unknown_command_is_not_sent(served: OpenAIServer) -> None:
    result = chat(served, "/modle x\n")
    assert (result.exit_code, served.asked) == (1, [])
    assert "there is no /modle; /help lists commands." in result.stderr


def test_a_turn_that_fails_ends_nothing_but_itself(served: OpenAIServer) -> None:
    served.script(BUSY)
    result = chat(served, "one\ntwo\n")
    assert (result.exit_code, result.stdout) == (1, f"{ANSWER}\n")
    assert "answered 503: Full.\nhint: try again." in result.stderr
    assert messages_of(served) == [("user", "two")]


def test_an_answer_that_breaks_off_counts_as_far_as_it_came(served: OpenAIServer) -> None:
    served.script(Script(events=(chunk(content="It"),), breaks=True))
    result = chat(served, "one\ntwo\n")
    assert (result.exit_code, result.stdout) == (1, f"It\n{ANSWER}\n")
    assert messages_of(served) == [("user", "one"), ("assistant", "It"), ("user", "two")]


def test_tool_calls_are_shown_and_get_their_results_from_the_next_lines(served: OpenAIServer, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    served.script(CALLS)
    result = chat(served, 'one\n{"degrees": 22}\n', "--tools", str(tools))
    assert (result.exit_code, result.stdout) == (0, f'→ weather({{"city": "Paris"}})\n{ANSWER}\n')
    assert served.asked[0]["tools"] == TOOLS
    called, given = served.asked[1]["messages"][1:]
    assert called["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert given == {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": 22}'}


def test_without_a_result_the_question_is_taken_back(served: OpenAIServer) -> None:
    served.script(CALLS)
    result = chat(served, "one\n\ntwo\n")
    assert "(no result: your message is removed)" in result.stderr
    assert messages_of(served) == [("user", "two")]


@pytest.mark.parametrize("content", ["{", "{}", '["weather"]', '[{"name": "weather"}]'])
def test_tools_that_are_none_are_refused(served: OpenAIServer, tmp_path: Path, content: str) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(content)
    assert isinstance(chat(served, "one\n", "--tools", str(tools)).exception, ConfigError)
    assert served.asked == []


def test_without_a_server_there_is_no_chat() -> None:
    result = CliRunner().invoke(command, ["--url", f"http://127.0.0.1:{free_port()}"], input="one\n")
    assert isinstance(result.exception, ServerError)


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, served: OpenAIServer, *arguments: str) -> None:
        variables = {**os.environ, "RAYLLM_URL": served.url, "TERM": "xterm"}
        variables.pop("NO_COLOR", None)
        run = ["-m", "rayllm", "chat", *arguments]
        self.child = pexpect.spawn(sys.executable, run, env=variables, encoding="utf-8", timeout=30)  # type: ignore[arg-type]
        self.child.expect("> ")

    def end(self) -> int:
        """End the input; the exit status."""
        self.child.sendeof()
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus or 0)


def test_ctrl_c_stops_the_answer_and_not_the_chat(served: OpenAIServer) -> None:
    served.script(Script(events=(chunk(content="Once"),), waits=True))
    terminal = Terminal(served)
    terminal.child.sendline("one")
    terminal.child.expect("Once")
    terminal.child.sendintr()
    terminal.child.expect_exact("(stopped)")
    assert served.left.wait(5)
    terminal.child.expect("> ")
    terminal.child.sendintr()
    terminal.child.expect_exact("/exit and Ctrl-D exit.")
    terminal.child.expect("> ")
    terminal.child.sendline("two")
    terminal.child.expect_exact("Paris.")
    assert messages_of(served) == [("user", "one"), ("assistant", "Once"), ("user", "two")]
    terminal.child.expect("> ")
    assert terminal.end() == 0


def test_a_terminal_dims_reasoning_and_is_not_moved_by_what_a_model_says(served: OpenAIServer) -> None:
    served.script(Script(events=(chunk(reasoning="Hm."), chunk(content="Pa\x1b]0;x\x07ris"), chunk("stop"))), CALLS)
    terminal = Terminal(served)
    terminal.child.sendline("one")
    terminal.child.expect_exact("\x1b[2mHm.\x1b[0m\r\n\r\nPa]0;xris\r\n")
    terminal.child.expect("> ")
    terminal.child.sendline("two")
    terminal.child.expect_exact("result of weather: ")
    terminal.child.sendline("22")
    terminal.child.expect_exact("Paris.")
    terminal.child.expect("> ")
    assert terminal.end() == 0
    assert served.asked[-1]["messages"][-1]["content"] == "22"
