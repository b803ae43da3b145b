"""`rayllm query`"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayllm.cli.client.server_options import choose_model, server_options
from rayllm.cli.terminal.output_files import check_place, write_files
from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.errors import ServerError
from rayllm.client.prompt_file import Line, read_lines
from rayllm.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.client.api.exchange import Exchange
    from rayllm.client.api.request import RequestTemplate
    from rayllm.client.bulk import Query


@click.command(
    "query",
    help="""Ask a model one thing, PROMPT (`-` reads standard input), or everything in a file.

    A file's answers are JSON lines in its order. What fails becomes a line with an `error`, and the exit is 1.""",
)
@click.argument("prompt", required=False)
@click.option("--file", metavar="FILE", help="JSON lines with `prompt` or `messages`, or a prompt a line; or `-`.")
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; else the first model that the server lists.")
@click.option("--system", default="", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Tokens of an answer at most.")
@click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest token each time.")
@click.option("--seed", type=int, help="The same gives the same answer, as far as the server can.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Ends the answer; may be repeated.")
@click.option("--raw", is_flag=True, help="Have the prompt continued as it is; else it is a user's message in a chat.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Lines asked at once.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the answers, as JSON lines.")
@click.option("--force", is_flag=True, help="Replace OUTPUT.")
@click.option("--json", "as_json", is_flag=True, help="Show the answer as JSON, as those of a file always are.")
@click.option("--stats", is_flag=True, help="Tell the time to the first token and tokens a second on standard error.")
def command(
    prompt: str | None,
    file: str | None,
    url: Address,
    key: ApiKey,
    model: str | None,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    stop: tuple[str, ...],
    raw: bool,
    concurrency: int,
    output: Path | None,
    force: bool,
    as_json: bool,
    stats: bool,
) -> None:
    from rayllm.client.api.request import RequestTemplate
    from rayllm.client.api.server import CHAT, COMPLETIONS

    if (prompt is None) == (file is None):
        raise click.UsageError("takes one of PROMPT and --file.")
    if raw and system:
        raise click.UsageError("--system is for chat; --raw has the prompt continued as it is.")
    if force and not output:
        raise click.UsageError("--force is for a file of --output.")
    if output:
        check_place(output, force)
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "stop": list(stop) or None}
    options = {name: value for name, value in given.items() if value is not None}
    form = RequestTemplate(COMPLETIONS if raw else CHAT, options, system)
    lines = [_line(prompt)] if prompt is not None else _lines(str(file))
    with asyncio.Runner() as runner:
        if prompt is not None and not as_json and not output:
            runner.run(_show(form, lines[0], url, key, model, stats))
        else:
            sys.exit(_Answers(form, lines, output).get(runner, url, key, model, concurrency, stats))


def _lines(file: str) -> list[Line]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}.") from None
    lines = read_lines(text)
    if not lines:
        raise ConfigError(f"{file}: holds no prompts.")
    return lines


def _line(prompt: str) -> Line:
    text = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt
    if not text:
        raise click.UsageError("PROMPT is empty.")
    return Line(1, {"prompt": text})


async def _show(form: RequestTemplate, line: Line, url: Address, key: ApiKey, model: str | None, stats: bool) -> None:
    """Show the answer to one prompt as it comes."""
    from rayllm.cli.terminal.stream_printer import StreamPrinter
    from rayllm.client.api.exchange import Exchange
    from rayllm.client.api.server import Server

    screen = StreamPrinter()
    async with Server(url, key) as server:
        chosen = await choose_model(server, model)
        exchange = Exchange(form.endpoint, form.fill(chosen, line.request))
        try:
            await exchange.run(server, screen.show)
        except ServerError as error:
            raise await server.explained(error, chosen) from None
        finally:
            screen.end()
    if exchange.answer.finish_reason == "length":
        click.echo("the answer was cut off: it may have no more tokens.", err=True)
    if stats:
        click.echo(_stats([exchange], exchange.took_s), err=True)


class _Answers:
    """Answers as JSON lines: in a file, or on standard output as soon as those before them are there."""

    def __init__(self, form: RequestTemplate, lines: list[Line], output: Path | None) -> None:
        from rayllm.client.bulk import BulkQuery

        self._questions = BulkQuery(lines, form)
        self._output = output
        self._shown = 0

    def get(
        self, runner: asyncio.Runner, url: Address, key: ApiKey, model: str | None, at_once: int, stats: bool
    ) -> int:
        """Ask for them; the exit status. Where that is broken off, what is not answered says so."""
        began, status = time.perf_counter(), 0
        try:
            runner.run(self._ask(url, key, model, at_once))
        except KeyboardInterrupt:
            status = 130
        if self._output is None:
            self._show(all_of_them=True)
        else:
            write_files({self._output: b"".join(map(_line_of, self._questions.all))}, force=True)
        failed = self._questions.failed
        if failed:
            click.echo(f"{failed} of {len(self._questions.all)} failed.", err=True)
        if stats:
            click.echo(_stats(self._questions.answered, time.perf_counter() - began), err=True)
        return status or int(failed > 0)

    async def _ask(self, url: Address, key: ApiKey, model: str | None, at_once: int) -> None:
        from rayllm.client.api.server import Server

        async with Server(url, key) as server:
            await self._questions.ask(server, await choose_model(server, model), at_once, self._show)

    def _show(self, all_of_them: bool = False) -> None:
        while self._output is None and self._shown < len(self._questions.all):
            question = self._questions.all[self._shown]
            if not (question.is_done or all_of_them):
                return
            click.echo(_line_of(question), nl=False)
            self._shown += 1


def _line_of(question: Query) -> bytes:
    # An answer may hold halves of characters, which have no place in a file.
    return json.dumps(question.as_json(), ensure_ascii=False).encode(errors="replace") + b"\n"


def _stats(answered: list[Exchange], took_s: float) -> str:
    """What the answers took, in one line."""
    from rayllm.client.statistics import percentile

    first = [1000 * exchange.first_s for exchange in answered if exchange.first_s is not None]
    counts = [exchange.tokens for exchange in answered]
    parts = [f"{len(answered)} answered in {took_s:.2f} s"]
    if first:
        slowest = f" (p50), {percentile(first, 99):.0f} ms (p99)" if len(first) > 1 else ""
        parts.append(f"first token after {percentile(first, 50):.0f} ms{slowest}")
    if answered and None not in counts:
        tokens = sum(count or 0 for count in counts)
        parts.append(f"{tokens} tokens, {tokens / took_s:.1f} a second")
    return "; ".join(parts)
