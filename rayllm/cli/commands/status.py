"""`rayllm status`"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rayllm.cli.shared.application import reason
from rayllm.cli.shared.cluster import connected
from rayllm.cli.shared.terminal import table

if TYPE_CHECKING:
    from rayllm.serving.cluster.status_report import ModelReport, ReplicaReport

# Between the two token counts of a rate.
_SAMPLE_S = 1.0
_Rates = dict[str, float | None]
_View = list[tuple["ModelReport", _Rates]]
_COLUMNS = [
    *("model", "status", "replicas", "ongoing", "waiting", "requests/s", "refused/s"),
    *("first token", "tokens/s", "cached", "KV cache", "adapters"),
]
_PHASES = ("fetch", "load", "warm_up")


@click.command(
    "status",
    help="""Show a cluster's models, replicas and their load, and why a replica is missing.

    It connects to the Ray cluster, so run it on or near one of its nodes.""",
)
@click.option("--address", default="auto", help="Address of the Ray cluster; default: the one on this machine.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per update.")
def command(address: str, watch: bool, interval: float, as_json: bool) -> None:
    with connected(address):
        views = _views(interval if watch else _SAMPLE_S)
        try:
            if watch and not as_json and sys.stdout.isatty():
                from rich.live import Live
                from rich.text import Text

                with Live(auto_refresh=False) as live:
                    for view in views:
                        live.update(Text(_text(view)), refresh=True)
            else:
                _printed(views, watch, as_json)
        except KeyboardInterrupt:
            return


def _views(interval: float) -> Iterator[_View]:
    """Reports, each with the rates since the previous report."""
    from rayllm.serving.cluster.status_report import report

    previous, reported_at = {_name(model): model for model in report()}, time.monotonic()
    while True:
        time.sleep(interval)
        models = report()
        elapsed = time.monotonic() - reported_at
        yield [(model, _rates(model, previous.get(_name(model), model), elapsed)) for model in models]
        previous, reported_at = {_name(model): model for model in models}, reported_at + elapsed


def _rates(model: ModelReport, previous: ModelReport, elapsed: float) -> _Rates:
    """What happened between two reports. Without a request or a prompt, there are no means: these are None."""
    counted = model.totals.since(previous.totals)
    return {
        "requests_per_s": round(counted.requests / elapsed, 1),
        "refused_per_s": round(counted.refused / elapsed, 1),
        "tokens_per_s": round(max(0.0, (_tokens(model) - _tokens(previous)) / elapsed), 1),
        "first_token_s": round(counted.first_token_s / counted.first_tokens, 6) if counted.first_tokens else None,
        "cached_share": round(counted.cached_tokens / counted.prompt_tokens, 3) if counted.prompt_tokens else None,
    }


def _tokens(model: ModelReport) -> int:
    return sum(each.generated_tokens for each in model.running)


def _name(model: ModelReport) -> tuple[str, str]:
    """Application and model id, since two applications may share an id."""
    return model.application, model.model_id


def _printed(views: Iterator[_View], again: bool, as_json: bool) -> None:
    for view in views:
        if as_json:
            click.echo(json.dumps({"models": [asdict(model) | rates for model, rates in view]}))
        else:
            click.echo(_text(view) + ("\n" if again else ""))
        sys.stdout.flush()
        if not again:
            return


def _text(view: _View) -> str:
    if not view:
        return "Nothing is served by RayLLM in this cluster."
    rows = [_row(*each) for each in view]
    return "\n".join([table(_COLUMNS, rows), *(line for model, _ in view for line in _lines(model))])


def _row(model: ModelReport, recent: _Rates) -> list[str]:
    running = model.running
    first_token_s, cached_share = recent["first_token_s"], recent["cached_share"]
    return [
        model.model_id,
        model.status.lower(),
        f"{len(running)}/{model.target}",
        str(sum(each.ongoing for each in running)),
        str(model.waiting),
        f"{recent['requests_per_s']:.1f}",
        f"{recent['refused_per_s']:.1f}",
        "-" if first_token_s is None else f"{1000 * first_token_s:.0f} ms",
        f"{recent['tokens_per_s']:.1f}",
        "-" if cached_share is None else f"{cached_share:.0%}",
        f"{max((each.kv_use for each in running), default=0):.0%}",
        ", ".join(sorted({name.rpartition(":")[2] for each in running for name in each.adapters})) or "-",
    ]


def _lines(model: ModelReport) -> Iterator[str]:
    for each in model.replicas:
        yield f"{model.model_id}, replica {each.id}" + (f" on {each.node}: " if each.node else ": ") + _state(each)
    if model.reason:
        yield f"{model.model_id}: {reason(model.reason)}"


def _state(replica: ReplicaReport) -> str:
    if replica.state == "RUNNING":
        phases = [f"{key.replace('_', '-')} {replica.phases[key]:.1f} s" for key in _PHASES if key in replica.phases]
        compute = f" in {replica.compute}" if replica.compute else ""
        return f"runs{compute}" + (f"; its start took {', '.join(phases)}" if phases else "")
    if replica.state != "STARTING":
        return replica.state.lower()
    if (start := replica.start) is None:
        return f"{'starting' if replica.node else 'waiting for resources'} since {replica.age_s:.0f} s"
    return f"starting: {start}"
