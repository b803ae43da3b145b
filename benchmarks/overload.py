"""What overload costs: goodput at 1.7 times what one replica of the demo can do, how fast the rest is refused, and the
router's memory.

python -m benchmarks.overload             print the table
python -m benchmarks.overload --write     also put it into docs/reliability.md
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import ray
import yaml
from ray import serve

from benchmarks.compare import PAGE, publish, read_options
from benchmarks.load import percentile
from benchmarks.processes import titled
from benchmarks.servers import DEMO, free_port
from rayllm import build_app

APP, MODEL = "overload", "steady"
SLOTS, QUEUE = 32, 64
SECONDS, FACTOR = 20.0, 1.7
_QUESTION = {"role": "user", "content": "Tell me a story."}
_BODY = {"model": MODEL, "messages": [_QUESTION], "max_tokens": 32, "min_tokens": 32, "ignore_eos": True}


@dataclass
class Seen:
    """What clients saw: seconds of each answer and of each refusal, and what failed otherwise."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    failed: int = 0


async def _ask(session: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    began = time.perf_counter()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=_BODY) as reply:
            await reply.read()
            status = reply.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    took = time.perf_counter() - began
    if status == 200:
        seen.answered.append(took)
    elif status == 503:
        seen.refused.append(took)
    else:
        seen.failed += 1


async def _at_peak(session: aiohttp.ClientSession, url: str) -> Seen:
    """As many clients as there are slots, each asking again at once."""
    seen, end = Seen(), time.monotonic() + SECONDS

    async def client() -> None:
        while time.monotonic() < end:
            await _ask(session, url, seen)

    await asyncio.gather(*(client() for _ in range(SLOTS)))
    return seen


async def _overloaded(session: aiohttp.ClientSession, url: str, rate: float) -> Seen:
    """Clients that come at a rate, whatever becomes of those before them."""
    seen, began, tasks = Seen(), time.monotonic(), []
    for number in itertools.count():
        due = began + number / rate
        if due > began + SECONDS:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(_ask(session, url, seen)))
    await asyncio.gather(*tasks)
    return seen


def _router_bytes() -> int:
    [router] = titled(f"ray::ServeReplica:{APP}:Router")
    return int(router.memory_info().rss)


async def _measure(url: str) -> str:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await _at_peak(session, url)
        before = _router_bytes()
        peak = await _at_peak(session, url)
        over = await _overloaded(session, url, FACTOR * len(peak.answered) / SECONDS)
        await asyncio.sleep(5)
    return _table({"at peak": peak, f"{FACTOR:g} times as many": over}, _router_bytes() - before)


def _table(phases: dict[str, Seen], grown: int) -> str:
    titles = [
        "requests",
        "answered a second",
        "answer, median",
        "refused",
        "refusal, median",
        "refusal, 99 %",
        "failed",
    ]
    lines = ["| " + " | ".join(titles) + " |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, seen in phases.items():
        refusals = [f"{1000 * percentile(seen.refused, share):.0f} ms" if seen.refused else "–" for share in (50, 99)]
        figures = [
            f"{len(seen.answered) / SECONDS:.1f}",
            f"{percentile(seen.answered, 50):.2f} s",
            str(len(seen.refused)),
        ]
        lines.append("| " + " | ".join([name, *figures, *refusals, str(seen.failed)]) + " |")
    return "\n".join([*lines, "", f"The router is {grown / 1e6:+.0f} MB larger five seconds after."])


def main() -> None:
    """Measure, and print or write the table."""
    read_options(__doc__)
    # As `rayllm run` does.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, namespace="serve")
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = (DEMO.parent / demo["model_loading_config"]["model_source"]).resolve()
    demo["model_loading_config"] = {"model_id": MODEL, "model_source": str(weights)}
    demo["engine_kwargs"]["max_num_seqs"] = SLOTS
    demo["deployment_config"] = {"max_queued_requests": QUEUE}
    del demo["lora_config"]
    router = {"num_replicas": 1, "listen": f"127.0.0.1:{port}"}
    serve.run(build_app({"llm_configs": [demo], "router": router}), name=APP, route_prefix="/")
    table = asyncio.run(_measure(f"http://127.0.0.1:{port}"))
    serve.shutdown()
    ray.shutdown()
    publish("overload", table, PAGE.with_name("reliability.md"))


if __name__ == "__main__":
    main()
