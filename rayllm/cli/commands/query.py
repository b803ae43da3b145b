"""`rayllm query`"""

import json
import sys

import click

from rayllm.cli.removed import removed_options
from rayllm.cli.shared.completion import Completion, StreamPrinter
from rayllm.cli.shared.server import Server, choose_model, server_options


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
@removed_options(
    *("--file", "--concurrency"),
    hint="`rayllm batch run` processes a file on this machine, /v1/batches on a service (docs/batch-api.md).",
)
@removed_options("--output", "-o", "--force", hint="`rayllm query --json PROMPT > FILE` writes a file.")
def command(
    server: Server,
    prompt: str,
    model: str | None,
    system: str,
    stop: tuple[str, ...],
    raw: bool,
    as_json: bool,
    stats: bool,
    **sampling: float | None,
) -> None:
    if raw and system:
        raise click.UsageError("--system is for chat; --raw completes the prompt as it is.")
    text = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt
    if not text:
        raise click.UsageError("PROMPT is empty.")
    messages = [{"role": "system", "content": system}] if system else []
    asked = {"prompt": text} if raw else {"messages": [*messages, {"role": "user", "content": text}]}
    options = {name: value for name, value in {**sampling, "stop": list(stop) or None}.items() if value is not None}
    body = {"model": choose_model(server, model), **options, **asked}
    completion, printer = Completion(), StreamPrinter()
    try:
        completion.receive(server, body, (lambda _: None) if as_json else printer.show)
    finally:
        printer.end()
    if as_json:
        # A completion may hold lone surrogates, which UTF-8 cannot encode.
        click.echo(json.dumps(completion.as_json(), ensure_ascii=False).encode(errors="replace"))
    elif completion.finish_reason == "length":
        click.echo("the completion was cut off at the maximum number of tokens.", err=True)
    if stats:
        click.echo(_stats(completion), err=True)


def _stats(completion: Completion) -> str:
    parts = [f"answered in {completion.e2e_s:.2f} s"]
    if completion.ttft_s is not None:
        parts.append(f"first token after {1000 * completion.ttft_s:.0f} ms")
    if tokens := completion.usage.get("completion_tokens"):
        parts.append(f"{tokens} tokens, {tokens / completion.e2e_s:.1f} a second")
    return "; ".join(parts)
