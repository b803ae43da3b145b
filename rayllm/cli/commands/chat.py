"""`rayllm chat`"""

import contextlib
import importlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from rayllm.cli.commands.models import model_table
from rayllm.cli.shared.completion import Completion, StreamPrinter
from rayllm.cli.shared.server import Server, ServerError, choose_model, model_hint, server_options
from rayllm.core.errors import ConfigError

_HELP = """\
/model NAME   continue with another model or adapter
/models       list them
/system TEXT  set the system message, or remove it without TEXT
/clear        start a new conversation
/help         show this
/exit         exit, as Ctrl-D does
Ctrl-C        stop the response
Write a message that begins with a slash with two."""


@click.command(
    "chat",
    help="""Chat with a model.

    If standard input is not a terminal, each line of it is a message.""",
)
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; default: the first model of the server.")
@click.option("--system", default="", metavar="TEXT", help="System message.")
@click.option("--tools", type=click.Path(path_type=Path), help="JSON file with tools in the format of OpenAI's API.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of a response.")
@click.option("--temperature", type=click.FloatRange(min=0), help="Sampling temperature; 0 is greedy.")
def command(server: Server, model: str | None, system: str, tools: Path | None, **sampling: float | None) -> None:
    options = {name: value for name, value in sampling.items() if value is not None}
    definitions = _read_tools(tools) if tools else []
    name = choose_model(server, model)
    sys.exit(_Chat(server, Conversation(name, system, definitions, options)).run())


def _read_tools(path: Path) -> list[dict[str, Any]]:
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}.") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise ConfigError(f'{path}: must be a list of objects such as {{"type": "function", "function": {{…}}}}.')
    return tools


@dataclass
class Conversation:
    """Messages so far, and the options of each request."""

    model: str
    system: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Additional fields of each request."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Without the system message."""

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def add(self, completion: Completion) -> list[dict[str, Any]]:
        """Add a completion; returns the tool calls that need results.

        Of an incomplete completion, the text is kept; without text, the user message is removed.
        """
        if completion.is_complete:
            self.messages.append(completion.as_message())
            return list(completion.calls.values())
        if completion.text:
            self.messages.append({"role": "assistant", "content": completion.text})
        else:
            self.undo()
        return []

    def add_result(self, call: dict[str, Any], result: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def undo(self) -> None:
        """Remove the last user message and all later messages."""
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def body(self) -> dict[str, Any]:
        """Body of the request for the next completion."""
        tools = {"tools": self.tools} if self.tools else {}
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*system, *self.messages], **tools, **self.options}


class _Chat:
    """Reads messages and commands, and prints responses, until the end of the input."""

    def __init__(self, server: Server, conversation: Conversation) -> None:
        self._server = server
        self._conversation = conversation
        self._printer = StreamPrinter()
        self._is_terminal = sys.stdin.isatty()
        self._has_failed = False
        self._is_over = False

    def run(self) -> int:
        """Run the chat; returns the exit status, which is always 0 on a terminal."""
        if self._is_terminal:
            click.echo("/help lists commands; Ctrl-D exits.", err=True)
            # Gives `input` line editing and a history, which is not saved.
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")
        while not self._is_over:
            self._turn()
        return int(self._has_failed and not self._is_terminal)

    def _turn(self) -> None:
        try:
            line = self._read("> ")
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            click.echo("\n/exit and Ctrl-D exit.", err=True)
            return
        if line.startswith("/") and not line.startswith("//"):
            self._command(*line.partition(" ")[::2])
        elif line.strip():
            self._conversation.say(line.removeprefix("/"))
            while self._complete():
                pass

    def _read(self, prompt: str) -> str:
        """Read a line; "" ends the chat at the end of the input."""
        try:
            if self._is_terminal and self._printer.is_terminal:
                return input(prompt)
            if self._is_terminal:
                click.echo(prompt, nl=False, err=True)
            line = sys.stdin.readline()
        except EOFError:
            line = ""
        if not line:
            self._is_over = True
            if self._is_terminal:
                click.echo(err=True)
        return line.rstrip("\n")

    def _complete(self) -> bool:
        """Request a response; returns whether its tool calls have results, which need a further response."""
        completion = Completion()
        try:
            completion.receive(self._server, self._conversation.body(), self._printer.show)
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            click.echo("\n(stopped)", err=True)
        except ServerError as error:
            self._fail(f"error: {error.message}")
        finally:
            self._printer.end()
        if completion.finish_reason == "length":
            click.echo("(cut off at the maximum number of tokens)", err=True)
        calls = self._conversation.add(completion)
        return bool(calls) and self._read_results(calls)

    def _read_results(self, calls: list[dict[str, Any]]) -> bool:
        """Prompt for the results of tool calls; returns whether all were given."""
        for call in calls:
            try:
                result = self._read(f"result of {call['function']['name']}: ")
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                result = ""
                click.echo(err=True)
            if not result:
                self._conversation.undo()
                click.echo("(no result: your message is removed)", err=True)
                return False
            self._conversation.add_result(call, result)
        return True

    def _command(self, name: str, argument: str) -> None:
        argument = argument.strip()
        try:
            if name == "/model":
                self._choose(argument)
            elif name == "/models":
                click.echo(model_table(self._server.models()))
            elif name == "/system":
                self._conversation.system = argument
                click.echo("(set)" if argument else "(no system message)", err=True)
            elif name == "/clear":
                self._conversation.messages.clear()
                click.echo("(cleared)", err=True)
            elif name == "/help":
                click.echo(_HELP)
            elif name == "/exit":
                self._is_over = True
            else:
                self._fail(f"there is no {name}; /help lists commands.")
        except ServerError as error:
            self._fail(f"error: {error.message}")

    def _choose(self, name: str) -> None:
        names = [each.id for each in self._server.models()] if name else []
        if name and name not in names:
            self._fail(f"there is no model `{name}`: {model_hint(name, names)}")
            return
        self._conversation.model = name or self._conversation.model
        click.echo(f"model: {self._conversation.model}", err=True)

    def _fail(self, message: str) -> None:
        self._has_failed = True
        click.echo(message, err=True)
