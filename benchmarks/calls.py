"""Requests with one short answer, where the way through the router weighs most: embeddings and tool calls.

python -m benchmarks.calls            print the table
python -m benchmarks.calls --write    also put it into docs/performance.md
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.compare import publish, read_options, rows, take_turns
from benchmarks.servers import DEMO, Server, bare_vllm, rayllm

CONCURRENCY = (1, 8)
REQUESTS = 32  # a round
EMBEDDINGS = {"model": "embedder", "input": [f"The capital of country number {i} is a city." for i in range(32)]}
PARAMETERS = {"location": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}
TOOL = {
    "name": "get_current_temperature",
    "description": "Get the current temperature at a location.",
    "parameters": {"type": "object", "properties": PARAMETERS, "required": ["location", "unit"]},
}
TOOL_CALL = {
    "model": "rayllm-demo",
    "messages": [{"role": "user", "content": "What's the temperature in Paris?"}],
    "tools": [{"type": "function", "function": TOOL}],
    "temperature": 0,
    "max_tokens": 64,
}


@dataclass(frozen=True)
class Round:
    """One server's turn. Times in seconds."""

    latencies: list[float]
    wall: float
    cpu_s: float


MEASURES = {
    "requests/s": lambda r: len(r.latencies) / r.wall,
    "latency p50, ms": lambda r: 1000 * statistics.median(r.latencies),
    "CPU ms / request": lambda r: 1000 * r.cpu_s / len(r.latencies),
}


def turn(server: Server, path: str, body: dict[str, Any], concurrency: int) -> Round:
    """One round of the same request, `concurrency` at once."""
    before = server.cpu_s()
    latencies, wall = asyncio.run(_ask(server.url + path, body, concurrency))
    return Round(latencies, wall, server.cpu_s() - before)


async def _ask(url: str, body: dict[str, Any], concurrency: int) -> tuple[list[float], float]:
    gate = asyncio.Semaphore(concurrency)

    async def one(session: aiohttp.ClientSession) -> float:
        async with gate:
            started = time.perf_counter()
            async with session.post(url, json=body) as reply:
                text = await reply.text()
                if reply.status != 200:
                    raise RuntimeError(f"{reply.status}: {text}")
            return time.perf_counter() - started

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        started = time.perf_counter()
        latencies = await asyncio.gather(*(one(session) for _ in range(REQUESTS)))
        return list(latencies), time.perf_counter() - started


def measure(model: Path, label: str, path: str, body: dict[str, Any]) -> list[str]:
    """Rows of the table for one kind of request."""
    table = []
    with ExitStack() as stack:
        servers = [stack.enter_context(rayllm(model)), stack.enter_context(bare_vllm(model))]
        for concurrency in CONCURRENCY:
            ours, theirs = take_turns(servers, lambda server, n=concurrency: turn(server, path, body, n))
            table += rows(f"{label}, {concurrency} at once", ours, theirs, MEASURES)
            print(f"{label}, {concurrency} at once: done", file=sys.stderr)
    return table


def embedder(folder: Path) -> Path:
    """The demo's weights as an embedding model."""
    demo = yaml.safe_load(DEMO.read_text())
    source = (DEMO.parent / demo["model_loading_config"]["model_source"]).resolve()
    model = {
        "model_loading_config": {"model_id": "embedder", "model_source": str(source)},
        "task": "embed",
        "max_request_context_length": 512,
        "engine_kwargs": demo["engine_kwargs"],
        "runtime_env": demo["runtime_env"],
    }
    path = folder / "embedder.yaml"
    path.write_text(yaml.safe_dump(model))
    return path


def main() -> None:
    read_options(__doc__)
    table = ["| request | measure | RayLLM | vLLM | ratio | range |", "|---|---|--:|--:|--:|---|"]
    with tempfile.TemporaryDirectory() as folder:
        table += measure(embedder(Path(folder)), "32 embeddings", "/v1/embeddings", EMBEDDINGS)
    table += measure(DEMO, "a tool call", "/v1/chat/completions", TOOL_CALL)
    publish("calls", "\n".join(table))


if __name__ == "__main__":
    main()
