"""`rayllm explain`"""

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from rayllm.cli.shared.cluster import connected
from rayllm.cli.shared.terminal import table
from rayllm.core.errors import ClusterError

PARTS = {
    "router": "reading and routing it",
    "hooks": "policy hooks",
    "guards": "guards",
    "lost": "replicas that did not answer",
    "wait": "waiting for a replica",
    "transfer": "between router and replica",
    "adapter": "loading the adapter",
    "prepare": "template, tokens and schema",
    "queue": "the engine's queue",
    "prefill": "reading the prompt",
    "decode": "generating",
    "deliver": "finishing and sending the reply",
}
"""What each part of a request's time is."""


@click.command(
    "explain",
    help="""Show where the time of a request went, or list the last requests.

    REQUEST_ID is the `x-request-id` of the reply. Each router keeps its last 4,096 requests. It connects to the Ray
    cluster, so run it on or near one of its nodes; `GET /v1/requests/{id}` tells administrators the same.""",
)
@click.argument("request_id", required=False)
@click.option("--address", default="auto", help="Address of the Ray cluster; default: the one on this machine.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Requests to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(request_id: str | None, address: str, limit: int, as_json: bool) -> None:
    with connected(address):
        from rayllm.serving.cluster import status_report

        if request_id is None:
            requests = status_report.last_requests(limit)
            click.echo(json.dumps(requests) if as_json else _listed(requests))
            return
        request = status_report.find_request(request_id)
        if request is None:
            raise ClusterError(
                f"no router of this cluster has the request `{request_id}` among its last ones.\n"
                "hint: the id is the header `x-request-id` of the reply; `rayllm explain` lists the last requests."
            )
        click.echo(json.dumps(request) if as_json else _explained(request))


def _listed(requests: list[dict[str, Any]]) -> str:
    rows = []
    for each in requests:
        name, _ = max(each["parts"].items(), key=lambda part: part[1], default=("", 0.0))
        at = time.strftime("%H:%M:%S", time.localtime(each["created"]))
        tokens = f"{each['prompt_tokens']} + {each['completion_tokens']}"
        row = [each["id"], at, _model(each), str(each["status"]), f"{each['total_s']:.3f}", tokens]
        rows.append([*row, PARTS.get(name, name)])
    headings = ["request", "at", "model", "status", "seconds", "tokens", "most of it"]
    return table(headings, rows) if rows else "No requests yet."


def _model(request: Mapping[str, Any]) -> str:
    return ":".join(filter(None, (request["model"], request["adapter"]))) or "-"


def _explained(request: Mapping[str, Any]) -> str:
    rows = []
    for name, seconds in request["parts"].items():
        share = seconds / request["total_s"] if request["total_s"] else 0.0
        rows.append([PARTS.get(name, name), f"{seconds:.4f}", f"{share:.0%}"])
    new = request["prompt_tokens"] - request["cached_tokens"]
    finished = f", finish reason {request['finish_reason']}" if request["finish_reason"] else ""
    lines = [
        f"{request['endpoint']} for {_model(request)}: {request['status']} after {request['total_s']:.3f} s{finished}",
        request["explanation"],
        "",
        table(["part", "seconds", "share"], rows),
        "",
        f"tokens: {new} new and {request['cached_tokens']} cached of the prompt, "
        f"{request['completion_tokens']} generated",
    ]
    if request["replica"]:
        waited = f", after it had waited for {request['waited_for']}" if request["waited_for"] else ""
        lines.append(f"replica: {request['replica']}, because {request['choice']}{waited}")
    if request["attempts"] > 1:
        lines.append(f"replicas tried: {request['attempts']}")
    if request["continuations"]:
        lines.append(f"continued in another replica: {request['continuations']}×")
    if request["error"]:
        lines.append(f"error: {request['error']}")
    return "\n".join(lines)
