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
from rayllm.cli.terminal.output_files import check_writable, write_files
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
    help="""Send one PROMPT (`-` reads standard input), or a file of prompts, to a model.

    Results of a file are JSON lines in its order. A failure is a line with an `error`, and the exit status is 1.""",
)
@click.argument("prompt", required=False)
@click.option("--file", metavar="FILE", help="JSON lines with `prompt` or `messages`, or a prompt per line; or `-`.")
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; default: the first model of the server.")
@click.option("--system", default="", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of a completion.")
@click.option("--temperature", type=click.FloatRange(min=0), help="Sampling temperature; 0 is greedy.")
@click.option("--seed", type=int, help="Sampling seed, if the server supports it.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop string; may be repeated.")
@click.option("--raw", is_flag=True, help="Complete the prompt as it is, instead of as a user message in a chat.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Requests at once.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the results, as JSON lines.")
@click.option("--force", is_flag=True, help="Replace OUTPUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, as for a file.")
@click.option("--stats", is_flag=True, help="Print time to first token and tokens per second on standard error.")
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
        raise click.UsageError("--system is for chat; --raw completes the prompt as it is.")
    if force and not output:
        raise click.UsageError("--force is for a file of --output.")
    if output:
        check_writable(output, force)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "stop": list(stop) or None}
    options = {name: value for name, value in sampling.items() if value is not None}
    template = RequestTemplate(COMPLETIONS if raw else CHAT, options, system)
    lines = [_line(prompt)] if prompt is not None else _lines(str(file))
    with asyncio.Runner() as runner:
        if prompt is not None and not as_json and not output:
            runner.run(_show(template, lines[0], url, key, model, stats))
        else:
            sys.exit(_Results(template, lines, output).run(runner, url, key, model, concurrency, stats))


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


async def _show(
    template: RequestTemplate, line: Line, url: Address, key: ApiKey, model: str | None, stats: bool
) -> None:
    """Print the completion of one prompt as it streams in."""
    from rayllm.cli.terminal.stream_printer import StreamPrinter
    from rayllm.client.api.exchange import Exchange
    from rayllm.client.api.server import Server

    printer = StreamPrinter()
    async with Server(url, key) as server:
        name = await choose_model(server, model)
        exchange = Exchange(template.endpoint, template.fill(name, line.request))
        try:
            await exchange.run(server, printer.show)
        except ServerError as error:
            raise await server.with_model_hint(error, name) from None
        finally:
            printer.end()
    if exchange.completion.finish_reason == "length":
        click.echo("the completion was cut off at the maximum number of tokens.", err=True)
    if stats:
        click.echo(_stats([exchange], exchange.e2e_s), err=True)


class _Results:
    """Results as JSON lines: in a file, or on standard output as soon as the earlier ones are there."""

    def __init__(self, template: RequestTemplate, lines: list[Line], output: Path | None) -> None:
        from rayllm.client.bulk import BulkQuery

        self._bulk = BulkQuery(lines, template)
        self._output = output
        self._printed = 0

    def run(
        self, runner: asyncio.Runner, url: Address, key: ApiKey, model: str | None, concurrency: int, stats: bool
    ) -> int:
        """Send the requests; returns the exit status. If interrupted, the rest is written with an error."""
        start, status = time.perf_counter(), 0
        try:
            runner.run(self._send(url, key, model, concurrency))
        except KeyboardInterrupt:
            status = 130
        if self._output is None:
            self._print(all_of_them=True)
        else:
            write_files({self._output: b"".join(map(_encoded, self._bulk.all))}, force=True)
        failed = self._bulk.failed
        if failed:
            click.echo(f"{failed} of {len(self._bulk.all)} failed.", err=True)
        if stats:
            click.echo(_stats(self._bulk.completed, time.perf_counter() - start), err=True)
        return status or int(failed > 0)

    async def _send(self, url: Address, key: ApiKey, model: str | None, concurrency: int) -> None:
        from rayllm.client.api.server import Server

        async with Server(url, key) as server:
            await self._bulk.run(server, await choose_model(server, model), concurrency, self._print)

    def _print(self, all_of_them: bool = False) -> None:
        while self._output is None and self._printed < len(self._bulk.all):
            query = self._bulk.all[self._printed]
            if not (query.is_done or all_of_them):
                return
            click.echo(_encoded(query), nl=False)
            self._printed += 1


def _encoded(query: Query) -> bytes:
    # A completion may hold lone surrogates, which UTF-8 cannot encode.
    return json.dumps(query.as_json(), ensure_ascii=False).encode(errors="replace") + b"\n"


def _stats(completed: list[Exchange], elapsed_s: float) -> str:
    """Latency and throughput in one line."""
    from rayllm.client.statistics import percentile

    ttft_ms = [1000 * exchange.ttft_s for exchange in completed if exchange.ttft_s is not None]
    counts = [exchange.tokens for exchange in completed]
    parts = [f"{len(completed)} answered in {elapsed_s:.2f} s"]
    if ttft_ms:
        p99 = f" (p50), {percentile(ttft_ms, 99):.0f} ms (p99)" if len(ttft_ms) > 1 else ""
        parts.append(f"first token after {percentile(ttft_ms, 50):.0f} ms{p99}")
    if completed and None not in counts:
        tokens = sum(count or 0 for count in counts)
        parts.append(f"{tokens} tokens, {tokens / elapsed_s:.1f} a second")
    return "; ".join(parts)
