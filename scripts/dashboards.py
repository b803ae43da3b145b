"""The Grafana dashboards in deploy/grafana, from the expressions of their panels.

Format: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 8
PARTS = ("router", "wait", "adapter", "engine_queue", "prefill", "decode")


class Panel(NamedTuple):
    """A panel: its title, its lines as legend → PromQL, their unit, and what the panel is for."""

    title: str
    lines: dict[str, str]
    unit: str
    help: str
    is_stacked: bool = False


def rate(series: str, by: str, matching: str = "") -> str:
    """PromQL for a counter's increase in a second."""
    return f"sum by ({by}) (rate({series}{{{matching}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str, matching: str = "") -> str:
    """PromQL for a quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', f'le, {by}', matching)})"


def mean(histogram: str, matching: str = "") -> str:
    """PromQL for the mean of a histogram, over all its labels."""
    total, count = (f"sum(rate({histogram}_{end}{{{matching}}}[$__rate_interval]))" for end in ("sum", "count"))
    return f"{total} / {count}"


def share(part: str, whole: str, by: str, matching: str = "") -> str:
    """PromQL for a counter's share of another."""
    return f"{rate(part, by, matching)} / {rate(whole, by, matching)}"


def tokens(kind: str) -> str:
    """PromQL for the tokens of a kind in a second, over all models."""
    return f'sum(rate(rayllm_tokens_total{{kind="{kind}"}}[$__rate_interval]))'


def cached_share(matching: str) -> str:
    """PromQL for the share of prompts' tokens that were in a KV cache, by model."""
    cached, prompt = (
        rate("rayllm_tokens_total", "model", f'{matching}, kind="{kind}"') for kind in ("cached", "prompt")
    )
    return f"{cached} / {prompt}"


COMPLETIONS = 'kind="completion"'
OPERATORS = (
    Panel("Requests", {"{{model}}": rate("rayllm_requests_total", "model")}, "reqps", "Requests that ended, by model."),
    Panel(
        "Failures",
        {"{{model}} {{status}}": rate("rayllm_requests_total", "model, status", 'status=~"5..|408|429|499"')},
        "reqps",
        "Requests that failed, timed out, were limited, or whose client left (499).",
    ),
    Panel(
        "Refused by the router",
        {"{{model}} {{cause}}": rate("rayllm_refused_total", "model, cause")},
        "reqps",
        "Requests that the router refused, by the code of the error.",
    ),
    Panel(
        "Time to first token",
        {
            f"{{{{model}}}} p{int(100 * q)}": quantile(q, "rayllm_time_to_first_token_seconds", "model")
            for q in (0.5, 0.95)
        },
        "s",
        "From a request's headers to its first token.",
    ),
    Panel(
        "Time between tokens",
        {
            f"{{{{model}}}} p{int(100 * q)}": quantile(q, "rayllm_time_between_tokens_seconds", "model")
            for q in (0.5, 0.95)
        },
        "s",
        "Mean of each request.",
    ),
    Panel(
        "Where the time of a request goes",
        {part.replace("_", " "): mean(f"rayllm_{part}_seconds") for part in PARTS},
        "s",
        "Mean seconds of each part. `rayllm explain` shows them for one request.",
        is_stacked=True,
    ),
    Panel(
        "Waiting for a replica",
        {"{{model}}": "sum by (model) (rayllm_requests_waiting)"},
        "short",
        "Requests without a replica yet: more replicas, or more slots (`max_ongoing_requests`), shorten this queue.",
    ),
    Panel(
        "Waiting in engines",
        {"{{model}}": "sum by (model) (vllm:num_requests_waiting)"},
        "short",
        "Requests that replicas have and engines do not work on yet.",
    ),
    Panel(
        "KV cache in use",
        {"{{model}}": "max by (model) (vllm:kv_cache_usage_perc)"},
        "percentunit",
        "Of each model's fullest replica.",
    ),
    Panel(
        "Replicas",
        {"{{model}} {{state}}": "max by (model, state) (rayllm_replicas)"},
        "short",
        "Those that routers send requests to (open), and others.",
    ),
    Panel(
        "Tokens",
        {
            "prompts": tokens("prompt"),
            "of them cached": tokens("cached"),
            "generated": tokens("completion"),
        },
        "short",
        "Tokens in a second, of all models.",
    ),
    Panel(
        "Who uses it",
        {
            "{{model}} {{adapter}} {{endpoint}}": "topk(10, "
            + rate("rayllm_tokens_total", "model, adapter, endpoint", COMPLETIONS)
            + ")"
        },
        "short",
        "Generated tokens in a second: the ten largest.",
    ),
    Panel(
        "Retries, continuations and fallbacks",
        {
            "{{model}} retries": rate("rayllm_retries_total", "model"),
            "{{model}} continuations": rate("rayllm_continuations_total", "model"),
            "{{model}} fallbacks": rate("rayllm_fallbacks_total", "model"),
        },
        "reqps",
        "Requests sent to another replica, streams that went on in another one, and requests that a fallback answered.",
    ),
    Panel(
        "Cache of weights",
        {"{{replica}}": "max by (replica) (rayllm_cache_bytes)"},
        "bytes",
        "On the node of each replica.",
    ),
)
OF_MODEL = 'model="$model"'
MODEL = (
    Panel(
        "Requests by status",
        {"{{status}}": rate("rayllm_requests_total", "status", OF_MODEL)},
        "reqps",
        "Requests that ended.",
    ),
    Panel(
        "Time to first token",
        {
            f"p{int(100 * q)}": quantile(q, "rayllm_time_to_first_token_seconds", "model", OF_MODEL)
            for q in (0.5, 0.95, 0.99)
        },
        "s",
        "From a request's headers to its first token.",
    ),
    Panel(
        "Time between tokens",
        {
            f"p{int(100 * q)}": quantile(q, "rayllm_time_between_tokens_seconds", "model", OF_MODEL)
            for q in (0.5, 0.95, 0.99)
        },
        "s",
        "Mean of each request.",
    ),
    Panel(
        "Where the time of a request goes",
        {part.replace("_", " "): mean(f"rayllm_{part}_seconds", OF_MODEL) for part in PARTS},
        "s",
        "Mean seconds of each part.",
        is_stacked=True,
    ),
    Panel(
        "Running and waiting in engines",
        {
            "{{replica}} running": f"sum by (replica) (vllm:num_requests_running{{{OF_MODEL}}})",
            "{{replica}} waiting": f"sum by (replica) (vllm:num_requests_waiting{{{OF_MODEL}}})",
        },
        "short",
        "Requests of each replica.",
    ),
    Panel(
        "KV cache in use",
        {"{{replica}}": f"max by (replica) (vllm:kv_cache_usage_perc{{{OF_MODEL}}})"},
        "percentunit",
        "By requests in progress.",
    ),
    Panel(
        "Preemptions",
        {"{{replica}}": rate("vllm:num_preemptions_total", "replica", OF_MODEL)},
        "reqps",
        "Requests that were taken out of the batch for want of KV cache.",
    ),
    Panel(
        "Prompt tokens from the KV cache",
        {
            "of all": cached_share(OF_MODEL),
            "{{replica}}": share(
                "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "replica", OF_MODEL
            ),
        },
        "percentunit",
        "Share that did not have to be read again.",
    ),
    Panel(
        "Tokens by adapter",
        {"{{adapter}}": rate("rayllm_tokens_total", "adapter", f"{OF_MODEL}, {COMPLETIONS}")},
        "short",
        "Generated in a second; the base model has no adapter.",
    ),
    Panel(
        "Finish reasons",
        {"{{finish_reason}}": rate("rayllm_finished_requests_total", "finish_reason", OF_MODEL)},
        "reqps",
        "Why engines stopped.",
    ),
    Panel(
        "Adapters in engines",
        {"{{replica}}": f"max by (replica) (rayllm_resident_adapters{{{OF_MODEL}}})"},
        "short",
        "Loaded now.",
    ),
    Panel(
        "Starts",
        {"{{replica}} {{phase}}": f"max by (replica, phase) (rayllm_start_seconds{{{OF_MODEL}}})"},
        "s",
        "Seconds of each phase of the last start.",
        is_stacked=True,
    ),
)


def dashboards() -> dict[Path, str]:
    """Each dashboard's file and its text."""
    model = {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": "label_values(rayllm_replicas, model)", "refId": "models"},
        "refresh": 2,
    }
    return {
        FOLDER / "rayllm-operators.json": _dashboard("rayllm-operators", "RayLLM: operators", OPERATORS, []),
        FOLDER / "rayllm-model.json": _dashboard("rayllm-model", "RayLLM: one model", MODEL, [model]),
    }


def _dashboard(uid: str, title: str, panels: tuple[Panel, ...], variables: list[dict[str, Any]]) -> str:
    datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    dashboard = {
        "uid": uid,
        "title": title,
        "tags": ["rayllm"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": [datasource, *variables]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 24 // WIDTH)
    custom = {"fillOpacity": 25 if panel.is_stacked else 5, "showPoints": "never"}
    if panel.is_stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": DATASOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": DATASOURCE}
            for index, (legend, expression) in enumerate(panel.lines.items())
        ],
    }
