"""`rayllm query`"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from rayllm.cli.client.server_options import choose_model, server_options
from rayllm.cli.removed import removed_option
from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.errors import ServerError

if TYPE_CHECKING:
    from rayllm.client.api.exchange import Exchange
    from rayllm.client.api.request import RequestTemplate


@click.command("query", help="Send one PROMPT to a model; `-` reads standard input.")
@click.argument("prompt")
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; default: the first model of the server.")
@click.option("--system", default="", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of a completion.")
@click.option("--temperature", type=click.FloatRange(min=0), help="Sampling temperature; 0 is greedy.")
@click.option("--seed", type=int, help="Sampling seed, if the server supports it.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop string; may be repeated.")
@click.option("--raw", is_flag=True, help="Complete the prompt as it is, instead of as a user message in a chat.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--stats", is_flag=True, help="Print time to first token and tokens per second on standard error.")
@removed_option(
    *("--file", "--concurrency"),
    hint="`rayllm batch run` processes a file on this machine, /v1/batches on a service (docs/batch-api.md).",
)
@removed_option("--output", "-o", "--force", hint="`rayllm query --json PROMPT > FILE` writes a file.")
def command(
    prompt: str,
    url: Address,
    key: ApiKey,
    model: str | None,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    stop: tuple[str, ...],
    raw: bool,
    as_json: bool,
    stats: bool,
) -> None:
    from rayllm.client.api.request import RequestTemplate
    from rayllm.client.api.server import CHAT, COMPLETIONS

    if raw and system:
        raise click.UsageError("--system is for chat; --raw completes the prompt as it is.")
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "stop": list(stop) or None}
    options = {name: value for name, value in sampling.items() if value is not None}
    template = RequestTemplate(COMPLETIONS if raw else CHAT, options, system)
    exchange = asyncio.run(_ask(template, _text(prompt), url, key, model, as_json))
    if as_json:
        # A completion may hold lone surrogates, which UTF-8 cannot encode.
        click.echo(json.dumps(exchange.as_json(), ensure_ascii=False).encode(errors="replace"))
    elif exchange.completion.finish_reason == "length":
        click.echo("the completion was cut off at the maximum number of tokens.", err=True)
    if stats:
        click.echo(_stats(exchange), err=True)


def _text(prompt: str) -> str:
    text = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt
    if not text:
        raise click.UsageError("PROMPT is empty.")
    return text


async def _ask(
    template: RequestTemplate, prompt: str, url: Address, key: ApiKey, model: str | None, quiet: bool
) -> Exchange:
    """Send a prompt, and unless `quiet`, print the completion as it streams in."""
    from rayllm.cli.terminal.stream_printer import StreamPrinter
    from rayllm.client.api.exchange import Exchange
    from rayllm.client.api.server import Server

    printer = StreamPrinter()
    async with Server(url, key) as server:
        name = await choose_model(server, model)
        exchange = Exchange(template.endpoint, template.fill(name, {"prompt": prompt}))
        try:
            await exchange.run(server, (lambda _: None) if quiet else printer.show)
        except ServerError as error:
            raise await server.with_model_hint(error, name) from None
        finally:
            printer.end()
    return exchange


def _stats(exchange: Exchange) -> str:
    """Latency and throughput in one line."""
    parts = [f"answered in {exchange.e2e_s:.2f} s"]
    if exchange.ttft_s is not None:
        parts.append(f"first token after {1000 * exchange.ttft_s:.0f} ms")
    if exchange.tokens is not None:
        parts.append(f"{exchange.tokens} tokens, {exchange.tokens / exchange.e2e_s:.1f} a second")
    return "; ".join(parts)
