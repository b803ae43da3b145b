"""What metrics, traces and logs cost.

python -m benchmarks.telemetry           three measurements
python -m benchmarks.telemetry --write   also put the tables into docs/performance.md

1. CPU per token of the demo, with all of it on (the engine's stats, Ray's exporter, traces, a log of requests), with
   what vLLM's own server records by default (the engine's stats), and with all of it off that can be, in turns.
2. The router's page of `GET /metrics` with 20 models of 100 adapters each.
3. Memory of a router's telemetry over a million requests with ids, models and adapters that clients made up.
"""

from __future__ import annotations

import http.server
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.compare import publish, read_options, rows, take_turns
from benchmarks.servers import DEMO, Server, rayllm
from benchmarks.turns import Round, Running, streams_turn
from rayllm.core.exposition import Renderer
from rayllm.core.request_stats import RequestStats
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.telemetry.telemetry import Telemetry
from rayllm.serving.wire.record import RequestRecord

STREAMS, TOKENS = (8, 32, 128), 128
# The difference is a hundredth, while two processes of the same program may differ by five: starts of each server,
# rounds after each start, and requests in each round.
STARTS, ROUNDS, REQUESTS = 3, 3, 64
ON, STATS, OFF = "all on", "vLLM's default", "all off"
MEASURES = ("CPU s / 1000 tokens", "tokens/s", "first token p50, ms")
MODELS, ADAPTERS = 20, 100
MADE_UP = 1_000_000


class _Sink(http.server.BaseHTTPRequestHandler):
    """Takes traces by OTLP over HTTP, and drops them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def sink() -> Iterator[str]:
    """The address of a receiver of traces."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def model_file(folder: Path, name: str, **keys: Any) -> Path:
    """The demo's file with other values."""
    config = yaml.safe_load(DEMO.read_text())
    config["model_loading_config"]["model_source"] = str(DEMO.parent / "rayllm-demo" / "weights")
    config["lora_config"]["dynamic_lora_loading_path"] = str(DEMO.parent / "rayllm-demo" / "adapters")
    config["engine_kwargs"] |= {"max_num_seqs": max(STREAMS), **keys.pop("engine_kwargs", {})}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config | keys))
    return path


def cpu_table() -> str:
    """Ratios of CPU per token and of tokens per second, on beside off and beside vLLM's default."""
    rounds: dict[int, dict[str, list[Round]]] = {streams: defaultdict(list) for streams in STREAMS}
    with tempfile.TemporaryDirectory() as name, sink() as endpoint:
        for start in range(STARTS):
            with _servers(Path(name), endpoint) as servers:
                for streams, taken in rounds.items():
                    for kind, more in zip(servers, _take_rounds(list(servers.values()), streams), strict=True):
                        taken[kind] += more
                    print(f"start {start + 1} of {STARTS}, {streams} streams: done", file=sys.stderr, flush=True)
    table = ["| streams | beside | measure | on | without | ratio | range |", "|--:|---|---|--:|--:|--:|---|"]
    measures = {name: partial(_value, name=name) for name in MEASURES}
    for streams, taken in rounds.items():
        for beside in (STATS, OFF):
            table += rows(f"{streams} | {beside}", taken[ON], taken[beside], measures)
    return "\n".join(table)


@contextmanager
def _servers(folder: Path, endpoint: str) -> Iterator[dict[str, Server]]:
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    on = model_file(folder, "on", log_engine_metrics=True)
    stats = model_file(folder, "stats")
    off = model_file(folder, "off", engine_kwargs={"disable_log_stats": True})
    with (
        rayllm(on, traces, name="on", router={"log_requests": True}) as with_all,
        rayllm(stats, name="stats") as with_stats,
        rayllm(off, name="off") as without,
    ):
        yield {ON: with_all, STATS: with_stats, OFF: without}


def _take_rounds(servers: Sequence[Server], streams: int) -> list[list[Round]]:
    running = [Running("rayllm", server, "rayllm-demo") for server in servers]
    turn = partial(streams_turn, streams=streams, tokens=TOKENS, requests=max(REQUESTS, streams))
    return take_turns(running, turn, ROUNDS)


def _value(taken: Round, name: str) -> float:
    return taken[name]


def page_table() -> str:
    """Milliseconds that a router takes for its page."""
    metrics = RouterMetrics(dict)
    for model in range(MODELS):
        for adapter in range(ADAPTERS):
            metrics.observe(
                _record(f"model-{model}", f"adapter-{adapter}", "id", RequestStats(10, 4, 7, 1, 1, 1, "stop", 1))
            )
    renderer = Renderer(metrics.registry, {"router": "r"})
    table = ["| format | series | size, KB | first page, ms | later pages, ms |", "|---|--:|--:|--:|--:|"]
    for is_openmetrics in (False, True):
        took = []
        for _ in range(21):
            started_at = time.perf_counter()
            page = renderer.page(is_openmetrics)
            took.append(1000 * (time.perf_counter() - started_at))
        name = "OpenMetrics" if is_openmetrics else "Prometheus' text"
        later = statistics.median(took[1:])
        series = sum(not line.startswith("#") for line in page.splitlines())
        table.append(f"| {name} | {series:,} | {len(page) / 1000:.0f} | {took[0]:.0f} | {later:.0f} |")
    return "\n".join(table)


def memory_table() -> str:
    """Memory after the first hundredth and after all made-up requests."""
    telemetry = Telemetry(RouterMetrics(dict), RecentRequests())
    process, held = psutil.Process(), []
    for number in range(MADE_UP):
        telemetry.end(_record("m", f"adapter-{number}", f"id-{number}", None, status=404))
        if number + 1 in (MADE_UP // 100, MADE_UP):
            held.append(process.memory_info().rss / 1e6)
    first, last = held
    return "\n".join(
        [
            f"| after {MADE_UP // 100:,} requests, MB | after {MADE_UP:,}, MB | grown by, MB |",
            "|--:|--:|--:|",
            f"| {first:.1f} | {last:.1f} | {last - first:.1f} |",
        ]
    )


def _record(model: str, adapter: str, request_id: str, stats: RequestStats | None, status: int = 200) -> RequestRecord:
    record = RequestRecord("/v1/chat/completions", request_id, model, adapter, status, stats=stats)
    record.routed()
    if stats:
        record.sent_to("replica")
        record.began()
    record.end()
    return record


def main() -> None:
    read_options(__doc__)
    publish("telemetry-page", page_table())
    publish("telemetry-memory", memory_table())
    publish("telemetry-cpu", cpu_table())


if __name__ == "__main__":
    main()
