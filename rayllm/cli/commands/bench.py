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
from rayllm.cli.terminal.output_files import check_writable, write_files
from rayllm.cli.terminal.user_input import say
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
    help="""Load-test an OpenAI-compatible server with streamed requests, and report latencies and throughput.

    The report includes failed requests. The exit status is 1 if all failed, and 130 after Ctrl-C, which reports what
    was measured so far.""",
)
@server_options
@click.option("--model", metavar="NAME", help="Model or adapter; default: the first model of the server.")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option("--requests", type=click.IntRange(min=1), help=f"Default: {_REQUESTS}, or each line of --dataset once.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"Requests in flight at once; default: {_CONCURRENCY}, or no limit with --rate.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests per second as a Poisson process, whether or not earlier ones are done.",
)
@click.option(
    "--prompt-tokens",
    metavar="N|MIN:MAX",
    callback=bench_options.token_range,
    help=f"Tokens of a prompt, including those of the chat template; default: {_PROMPT_TOKENS}.",
)
@click.option(
    "--output-tokens",
    metavar="N|MIN:MAX",
    callback=bench_options.token_range,
    help=f"Exact tokens of a completion; default: {_OUTPUT_TOKENS}, or with --dataset the model's choice.",
)
@click.option(
    "--shared-prefix-tokens",
    type=click.IntRange(min=0),
    help="Tokens of a prefix that all prompts share.",
)
@click.option(
    "--dataset",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=bench_options.dataset,
    help="Prompts in the format of `rayllm query --file`, used in turn; default: random words.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Requests before the measured ones.",
)
@click.option("--seed", type=int, help="Seed of the load; default: random, and part of the JSON.")
@click.option(
    "--goodput",
    "targets",
    metavar="TARGETS",
    callback=bench_options.targets,
    help="Count requests that meet latency targets in milliseconds: ttft:200,itl:50,tpot:20,e2e:5000.",
)
@click.option("--percentiles", default="50,90,95,99", show_default=True, callback=bench_options.percentiles)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, with a row per request.")
@click.option("--output", type=click.Path(path_type=Path), help="File for the same JSON.")
@click.option("--png", type=click.Path(path_type=Path), help="File for a plot of the latencies.")
@click.option("--no-plot", is_flag=True, help="Draw no plot on the terminal.")
@click.option("--force", is_flag=True, help="Replace existing files.")
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
    targets: LatencyTargets | None,
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
        raise click.UsageError("--prompt-tokens and --shared-prefix-tokens are for generated prompts.")
    paths = [path for path in (output, png) if path]
    if force and not paths:
        raise click.UsageError("--force is for the files of --output and --png.")
    for path in paths:
        check_writable(path, force)
    if png:
        bench_plots.check_png()
    spec = LoadSpec(
        endpoint=CHAT if endpoint == "chat" else COMPLETIONS,
        requests=requests or len(dataset) or _REQUESTS,
        concurrency=concurrency or (_CONCURRENCY if rate is None else None),
        rate=rate,
        prompt_tokens=prompt_tokens or TokenRange(_PROMPT_TOKENS, _PROMPT_TOKENS),
        shared_prefix_tokens=shared_prefix_tokens or 0,
        output_tokens=output_tokens or (None if dataset else TokenRange(_OUTPUT_TOKENS, _OUTPUT_TOKENS)),
        dataset=dataset,
        warmup=warmup,
        # Not a constant: the prompts of an earlier load would be in the server's prefix cache.
        seed=secrets.randbits(32) if seed is None else seed,
    )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    bench = _measure(spec, url, key, model)
    report = Report(bench.load, spec.requests, targets)
    fields = {"started": started, "url": str(url), **bench.settings(), **report.as_json(percentiles)}
    text = json.dumps(fields, indent=1)
    if output:
        write_files({output: text}, force=True)
    if png:
        write_files({png: bench_plots.png(report, f"{bench.model} at {url}, {spec.requests} requests")}, force=True)
    click.echo(text if as_json else bench_report.text(report, bench, percentiles))
    if sys.stdout.isatty() and not as_json and not no_plot and report.completed:
        click.echo(bench_plots.terminal_plot(report))
    for line in bench_report.warnings(report, bench):
        click.echo(f"warning: {line}", err=True)
    sys.exit(130 if report.unfinished else int(not report.completed))


def _measure(spec: LoadSpec, url: Address, key: ApiKey, model: str | None) -> Benchmark:
    """Run a benchmark, or interrupt it once its load has started."""
    from rayllm.client.api.server import Server
    from rayllm.client.benchmark.benchmark import Benchmark

    benchmarks: list[Benchmark] = []

    async def run() -> None:
        async with Server(url, key) as server:
            name = await choose_model(server, model)
            benchmarks.append(Benchmark(server, name, spec, say, _Progress(spec.requests).count))
            await benchmarks[0].run()

    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            runner.run(run())
        except KeyboardInterrupt:
            if not benchmarks or not benchmarks[0].has_started:
                raise
            click.echo(err=True)
    return benchmarks[0]


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        # Ray Serve depends on it; a chunk costs half as much on it.
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Progress:
    """Progress line on a terminal."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._done = self._failed = 0
        self._next = 0.0
        self._is_shown = sys.stderr.isatty()

    def count(self, trace: RequestTrace) -> None:
        """Count a request."""
        self._done += 1
        self._failed += trace.failure is not None
        is_last = self._done == self._requests
        if self._is_shown and (is_last or time.monotonic() >= self._next):
            self._next = time.monotonic() + _PROGRESS_S
            line = f"\r{self._done} of {self._requests} done, {self._failed} failed"
            click.echo(line, nl=is_last, err=True)
