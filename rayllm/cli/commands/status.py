"""`rayllm status`"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rayllm.cli.deployment.application import reason
from rayllm.cli.deployment.cluster import connected
from rayllm.cli.terminal.table import Table

if TYPE_CHECKING:
    from rayllm.serving.cluster.status_report import ModelReport, ReplicaReport

# Between the two counts of tokens that a rate is told from.
_SAMPLE_S = 1.0
_Name = tuple[str, str]
_PHASES = ("fetch", "load", "warm_up")


@click.command(
    "status",
    help="""Show what a cluster serves: models, replicas and what they do, and why one is not there.

    Connects to the Ray cluster, so it runs on one of its nodes or beside one.""",
)
@click.option("--address", default="auto", help="Address of the Ray cluster; else the one on this machine.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two.")
@click.option("--json", "as_json", is_flag=True, help="Show it as JSON, a line each time.")
def command(address: str, watch: bool, interval: float, as_json: bool) -> None:
    with connected(address):
        views = _views(interval if watch else _SAMPLE_S)
        try:
            if watch and not as_json and sys.stdout.isatty():
                _live(views)
            else:
                _printed(views, watch, as_json)
        except KeyboardInterrupt:
            return


def _views(interval: float) -> Iterator[tuple[list[ModelReport], dict[_Name, float]]]:
    """What there is, with the tokens a second of each model since the time before."""
    from rayllm.serving.cluster.status_report import report

    before, asked = _tokens(report()), time.monotonic()
    while True:
        time.sleep(interval)
        now = report()
        tokens, took = _tokens(now), time.monotonic() - asked
        yield now, {name: max(0.0, (count - before.get(name, count)) / took) for name, count in tokens.items()}
        before, asked = tokens, asked + took


def _tokens(models: Sequence[ModelReport]) -> dict[_Name, int]:
    return {_name(model): sum(each.generated_tokens for each in model.running) for model in models}


def _name(model: ModelReport) -> _Name:
    """Two applications may have a model of one id."""
    return model.application, model.model_id


def _printed(views: Iterator[Any], again: bool, as_json: bool) -> None:
    for models, rates in views:
        click.echo(json.dumps(_as_json(models, rates)) if as_json else _text(models, rates) + ("\n" if again else ""))
        sys.stdout.flush()
        if not again:
            return


def _live(views: Iterator[Any]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        for models, rates in views:
            live.update(Text(_text(models, rates)), refresh=True)


def _text(models: Sequence[ModelReport], rates: dict[_Name, float]) -> str:
    if not models:
        return "Nothing is served by RayLLM in this cluster."
    table = Table(["model", "status", "replicas", "in hand", "waiting", "tokens/s", "KV cache", "adapters"])
    for model in models:
        running = model.running
        table.add(
            [
                model.model_id,
                model.status.lower(),
                f"{len(running)}/{model.target}",
                str(sum(each.ongoing for each in running)),
                str(model.waiting),
                f"{rates[_name(model)]:.1f}",
                f"{max((each.kv_use for each in running), default=0):.0%}",
                ", ".join(sorted({name.rpartition(":")[2] for each in running for name in each.adapters})) or "-",
            ]
        )
    return "\n".join([table.text(), *(line for model in models for line in _lines(model))])


def _lines(model: ModelReport) -> Iterator[str]:
    """What is to be said of a model beside its row."""
    for each in model.replicas:
        yield f"{model.model_id}, replica {each.id}" + (f" on {each.node}: " if each.node else ": ") + _doing(each)
    if model.reason:
        yield f"{model.model_id}: {reason(model.reason)}"


def _doing(replica: ReplicaReport) -> str:
    if replica.state == "RUNNING":
        took = [f"{name.replace('_', '-')} {replica.phases[name]:.1f} s" for name in _PHASES if name in replica.phases]
        return "runs" + (f"; its start took {', '.join(took)}" if took else "")
    if replica.state != "STARTING":
        return replica.state.lower()
    if (start := replica.start) is None:
        return f"{'starting' if replica.node else 'has no place yet'} since {replica.age_s:.0f} s"
    share = f", {start.done / start.size:.0%} of {start.size / 1e9:.1f} GB" if start.size else ""
    return f"starting: {start.phase.replace('_', '-')} since {time.time() - start.since:.0f} s{share}"


def _as_json(models: Sequence[ModelReport], rates: dict[_Name, float]) -> dict[str, Any]:
    return {"models": [{**asdict(model), "tokens_per_s": round(rates[_name(model)], 1)} for model in models]}
