"""`rayllm chat`"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rayllm.cli.client.server_options import choose_model, server_options
from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.errors import ServerError
from rayllm.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.client.api.completion import ToolCall
    from rayllm.client.api.exchange import Exchange
    from rayllm.client.api.server import Server
    from rayllm.client.conversation import Conversation

Result = TypeVar("Result")

_COMMANDS = {
    "/model NAME": "go on with another model or adapter",
    "/models": "list them",
    "/system TEXT": "set the system message; without TEXT there is none",
    "/clear": "forget what was said",
    "/help": "show this",
    "/exit": "end, as Ctrl-D does",
}
_HELP = "\n".join(
    [
        *(f"{name:<14}{does}" for name, does in _COMMANDS.items()),
        "Ctrl-C        stop the answer",
        "A message that begins with a slash is written with two.",
    ]
)


@click.command(
    "chat",
    help="""Talk with a model, in as many turns as you like.

    Where standard input is no terminal, each line of it is a message, and answers are printed plainly.""",
)
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; else the first model that the server lists.")
@click.option("--system", default="", metavar="TEXT", help="System message.")
@click.option("--tools", type=click.Path(path_type=Path), help="JSON list of tools as OpenAI's API takes them.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Tokens of an answer at most.")
@click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest token each time.")
def command(
    url: Address,
    key: ApiKey,
    model: str | None,
    system: str,
    tools: Path | None,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    from rayllm.client.conversation import Conversation

    given = {"max_tokens": max_tokens, "temperature": temperature}
    options = {name: value for name, value in given.items() if value is not None}
    offered = _read_tools(tools) if tools else []
    with asyncio.Runner() as runner:
        link = _Link(runner, url, key)
        chosen = link.call(lambda server: choose_model(server, model))
        sys.exit(_Chat(link, Conversation(chosen, system, offered, options)).run())


def _read_tools(path: Path) -> list[dict[str, Any]]:
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}.") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise ConfigError(f'{path}: must be a list of objects such as {{"type": "function", "function": {{…}}}}.')
    return tools


class _Link:
    """The way to the server, for one piece of work after the other: what was idle long would be closed."""

    def __init__(self, runner: asyncio.Runner, url: Address, key: ApiKey) -> None:
        self._runner = runner
        self._url = url
        self._key = key

    def call(self, work: Callable[[Server], Coroutine[Any, Any, Result]]) -> Result:
        """Do work with a connection. Ctrl-C breaks it off, closes the connection and raises KeyboardInterrupt."""
        from rayllm.client.api.server import Server

        async def connected() -> Result:
            async with Server(self._url, self._key) as server:
                return await work(server)

        return self._runner.run(connected())


class _Chat:
    """Reads messages and commands, and shows answers, until there is no more to read."""

    def __init__(self, link: _Link, conversation: Conversation) -> None:
        from rayllm.cli.terminal.stream_printer import StreamPrinter

        self._link = link
        self._conversation = conversation
        self._screen = StreamPrinter()
        self._is_terminal = sys.stdin.isatty()
        self._has_failed = False
        self._is_over = False

    def run(self) -> int:
        """Talk; the exit status, which on a terminal is 0: a person saw what failed."""
        if self._is_terminal:
            click.echo("/help lists commands; Ctrl-D ends.", err=True)
            # Brings `input` editing and a history, which is kept nowhere.
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
            click.echo("\n/exit and Ctrl-D end.", err=True)
            return
        if line.startswith("/") and not line.startswith("//"):
            self._obey(*line.partition(" ")[::2])
        elif line.strip():
            self._conversation.say(line.removeprefix("/"))
            while self._answer():
                pass

    def _read(self, prompt: str) -> str:
        """The next line; "" and the end of the chat where there is none."""
        try:
            if self._is_terminal and self._screen.is_terminal:
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

    def _answer(self) -> bool:
        """Get an answer; whether its tool calls have got results, so that another has to come."""
        from rayllm.client.api.exchange import Exchange
        from rayllm.client.api.server import CHAT

        exchange = Exchange(CHAT, self._conversation.body())
        try:
            self._link.call(lambda server: self._show(server, exchange))
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            click.echo("\n(stopped)", err=True)
        except ServerError as error:
            self._fail(f"error: {error.message}")
        finally:
            self._screen.end()
        if exchange.answer.finish_reason == "length":
            click.echo("(cut off: the answer may have no more tokens)", err=True)
        calls = self._conversation.take(exchange.answer, exchange.is_complete)
        return bool(calls) and self._give_results(calls)

    async def _show(self, server: Server, exchange: Exchange) -> None:
        try:
            await exchange.run(server, self._screen.show)
        except ServerError as error:
            raise await server.explained(error, self._conversation.model) from None

    def _give_results(self, calls: list[ToolCall]) -> bool:
        """Ask for what the tools give; whether all is there."""
        for call in calls:
            try:
                result = self._read(f"result of {call.name}: ")
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                result = ""
                click.echo(err=True)
            if not result:
                self._conversation.take_back()
                click.echo("(no result: the question is taken back)", err=True)
                return False
            self._conversation.give(call, result)
        return True

    def _obey(self, name: str, argument: str) -> None:
        argument = argument.strip()
        try:
            if name == "/model":
                self._choose(argument)
            elif name == "/models":
                from rayllm.cli.commands.models import table

                click.echo(table(self._link.call(lambda server: server.models())).text())
            elif name == "/system":
                self._conversation.system = argument
                click.echo("(noted)" if argument else "(no system message)", err=True)
            elif name == "/clear":
                self._conversation.messages.clear()
                click.echo("(forgotten)", err=True)
            elif name == "/help":
                click.echo(_HELP)
            elif name == "/exit":
                self._is_over = True
            else:
                self._fail(f"there is no {name}; /help lists commands.")
        except ServerError as error:
            self._fail(f"error: {error.message}")

    def _choose(self, name: str) -> None:
        from rayllm.client.api.server import named_instead

        names = [card.id for card in self._link.call(lambda server: server.models())] if name else []
        if name and name not in names:
            self._fail(f"there is no model `{name}`: {named_instead(name, names)}")
            return
        self._conversation.model = name or self._conversation.model
        click.echo(f"model: {self._conversation.model}", err=True)

    def _fail(self, message: str) -> None:
        self._has_failed = True
        click.echo(message, err=True)
