"""`rayllm bench`"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayllm.cli.client import bench_options
from rayllm.cli.client.server_options import choose_model, server_options
from rayllm.cli.terminal.output_files import check_place, write_files
from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.prompt_file import Line

if TYPE_CHECKING:
    from rayllm.client.benchmark.benchmark import Benchmark, LoadSpec, TokenRange
    from rayllm.client.benchmark.goodput import LatencyTargets
    from rayllm.client.benchmark.load import RequestTrace

_REQUESTS = 100
_CONCURRENCY = 8
_PROMPT_TOKENS = 256
_OUTPUT_TOKENS = 64
_PROGRESS_S = 0.2


@click.command(
    "bench",
    help="""Load an OpenAI-compatible server with streamed requests, and show what its clients see.

    Failed requests are part of what is shown. Exit 1 when all failed, 130 after Ctrl-C, which shows what there is.""",
)
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; else the first model that the server lists.")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option("--requests", type=click.IntRange(min=1), help=f"Else {_REQUESTS}, or each line of --dataset once.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"Requests under way at once; else {_CONCURRENCY}, or with --rate as many as come.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests a second, at random times (a Poisson process), whether or not earlier ones are answered.",
)
@click.option(
    "--prompt-tokens",
    metavar="N|MIN:MAX",
    callback=bench_options.token_range,
    help=f"Tokens of a prompt, with those that the server puts around it; else {_PROMPT_TOKENS}.",
)
@click.option(
    "--output-tokens",
    metavar="N|MIN:MAX",
    callback=bench_options.token_range,
    help=f"Tokens of an answer, exactly; else {_OUTPUT_TOKENS}, or with --dataset as the model likes.",
)
@click.option(
    "--shared-prefix-tokens",
    type=click.IntRange(min=0),
    help="Tokens at the beginning of all prompts that are the same.",
)
@click.option(
    "--dataset",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=bench_options.dataset,
    help="Prompts as `rayllm query --file` takes them, in turn; else they are random words.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Requests before those that are measured.",
)
@click.option("--seed", type=int, help="The same gives the same load; else one by chance, which the JSON tells.")
@click.option(
    "--goodput",
    "limits",
    metavar="LIMITS",
    callback=bench_options.limits,
    help="Count requests that keep to limits in milliseconds, such as ttft:200,itl:50,e2e:5000; tpot is another.",
)
@click.option("--percentiles", default="50,90,95,99", show_default=True, callback=bench_options.percentiles)
@click.option("--json", "as_json", is_flag=True, help="Show all of it as JSON, with a row for each request.")
@click.option("--output", type=click.Path(path_type=Path), help="File for the same JSON.")
@click.option("--png", type=click.Path(path_type=Path), help="File for a picture of the latencies.")
@click.option("--no-plot", is_flag=True, help="Draw nothing on the terminal.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def command(
    url: Address,
    key: ApiKey,
    model: str | None,
    endpoint: str,
    requests: int | None,
    concurrency: int | None,
    rate: float | None,
    prompt_tokens: TokenRange | None,
    output_tokens: TokenRange | None,
    shared_prefix_tokens: int | None,
    dataset: list[Line],
    warmup: int,
    seed: int | None,
    limits: LatencyTargets | None,
    percentiles: list[float],
    as_json: bool,
    output: Path | None,
    png: Path | None,
    no_plot: bool,
    force: bool,
) -> None:
    from rayllm.cli.client import bench_plots, bench_report
    from rayllm.client.api.server import CHAT, COMPLETIONS
    from rayllm.client.benchmark.benchmark import LoadSpec, TokenRange
    from rayllm.client.benchmark.report import Report

    if dataset and (prompt_tokens or shared_prefix_tokens is not None):
        raise click.UsageError("--prompt-tokens and --shared-prefix-tokens are for prompts that are made up.")
    places = [path for path in (output, png) if path]
    if force and not places:
        raise click.UsageError("--force is for the files of --output and --png.")
    for path in places:
        check_place(path, force)
    if png:
        bench_plots.check_png()
    wish = LoadSpec(
        endpoint=CHAT if endpoint == "chat" else COMPLETIONS,
        requests=requests or len(dataset) or _REQUESTS,
        concurrency=concurrency or (_CONCURRENCY if rate is None else None),
        rate=rate,
        prompt_tokens=prompt_tokens or TokenRange(_PROMPT_TOKENS, _PROMPT_TOKENS),
        shared_prefix_tokens=shared_prefix_tokens or 0,
        output_tokens=output_tokens or (None if dataset else TokenRange(_OUTPUT_TOKENS, _OUTPUT_TOKENS)),
        dataset=dataset,
        warmup=warmup,
        # The prompts of an earlier load would be in the server's cache.
        seed=secrets.randbits(32) if seed is None else seed,
    )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    bench = _measure(wish, url, key, model)
    report = Report(bench.load, wish.requests, limits)
    told = {"started": started, "url": str(url), **bench.settings(), **report.as_json(percentiles)}
    text = json.dumps(told, indent=1)
    if output:
        write_files({output: text}, force=True)
    if png:
        write_files({png: bench_plots.png(report, f"{bench.model} at {url}, {wish.requests} requests")}, force=True)
    click.echo(text if as_json else bench_report.text(report, bench, percentiles))
    if sys.stdout.isatty() and not as_json and not no_plot and report.completed:
        click.echo(bench_plots.terminal_plot(report))
    for line in bench_report.warnings(report, bench):
        click.echo(f"warning: {line}", err=True)
    sys.exit(130 if report.unfinished else int(not report.completed))


def _measure(wish: LoadSpec, url: Address, key: ApiKey, model: str | None) -> Benchmark:
    """A benchmark that was run, or broken off after its load had begun."""
    from rayllm.client.api.server import Server
    from rayllm.client.benchmark.benchmark import Benchmark

    made: list[Benchmark] = []

    async def run() -> None:
        async with Server(url, key) as server:
            chosen = await choose_model(server, model)
            made.append(Benchmark(server, chosen, wish, _tell, _Progress(wish.requests).count))
            await made[0].run()

    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            runner.run(run())
        except KeyboardInterrupt:
            if not made or not made[0].has_begun:
                raise
            click.echo(err=True)
    return made[0]


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        # Ray Serve brings it along; a chunk costs half as much on it.
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _tell(line: str) -> None:
    click.echo(line, err=True)


class _Progress:
    """Shows on a terminal how many requests are done."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._done = self._failed = 0
        self._next = 0.0
        self._is_shown = sys.stderr.isatty()

    def count(self, seen: RequestTrace) -> None:
        """Count one more."""
        self._done += 1
        self._failed += seen.failure is not None
        is_last = self._done == self._requests
        if self._is_shown and (is_last or time.monotonic() >= self._next):
            self._next = time.monotonic() + _PROGRESS_S
            line = f"\r{self._done} of {self._requests} done, {self._failed} failed"
            click.echo(line, nl=is_last, err=True)
