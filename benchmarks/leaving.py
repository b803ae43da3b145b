"""How long the engine goes on for a client that left, wherever its request has got to.

python -m benchmarks.leaving           one demo engine, ten clients a case
python -m benchmarks.leaving --write   also put the table into docs/performance.md
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import ray
from ray import serve

from benchmarks.compare import publish, read_options
from benchmarks.connection import Answer, Connection
from benchmarks.load import CHAT, chat
from benchmarks.servers import rayllm

MODEL = "rayllm-demo"
TIMES = 10
TOKENS = 900
# The engine takes 64 sequences at once: these fill it.
CROWDS, SEQUENCES = 4, 16
# Dozens of batches of what the engine takes in one step.
PROMPTS = 64


class Engine:
    """What the engine has in hand, as its replica says."""

    def __init__(self) -> None:
        self._handle: Any = serve.get_deployment_handle(MODEL, "rayllm")

    async def unfinished(self) -> int:
        """Requests that it works on or keeps waiting."""
        return int(await self._handle.unfinished_requests.remote())

    async def is_silent(self) -> bool:
        """Whether it has said nothing yet to some request."""
        load = await self._handle.record_autoscaling_stats.remote()
        return bool(load["queued_tokens"])


def decoding(stream: bool) -> tuple[str, dict[str, Any]]:
    """A long answer."""
    return CHAT, chat(MODEL, TOKENS) | _streamed(stream)


def prefilling(stream: bool) -> tuple[str, dict[str, Any]]:
    """Prompts that take the engine many steps; never the same, or it would find them in its cache."""
    words = [f"{random.random()} " * 40 for _ in range(PROMPTS)]
    return "/v1/completions", {"model": MODEL, "prompt": words, "max_tokens": 50, "min_tokens": 50, "stream": stream}


def _streamed(stream: bool) -> dict[str, Any]:
    return {"stream": stream, "stream_options": {"include_usage": True} if stream else None}


async def leave(url: str, asked: tuple[str, dict[str, Any]], is_there: Callable[[], Awaitable[bool]]) -> Connection:
    """Ask, and leave as soon as the request is where it should be."""
    connection = Connection(url)
    answer = asyncio.create_task(connection.ask(connection.request(*asked)))
    while not await is_there():
        _check(answer)
    connection.close()
    with suppress(ConnectionError):
        await answer
    return connection


def _check(answer: asyncio.Task[Answer]) -> None:
    if answer.done():
        raise RuntimeError(f"answered before the client left: {answer.result()}")


async def gone(engine: Engine, left: int) -> float:
    """Seconds until the engine has no more than this in hand."""
    since = time.perf_counter()
    while await engine.unfinished() > left:
        pass
    return time.perf_counter() - since


async def decoding_once(url: str, engine: Engine, stream: bool) -> float:
    """Leave while the answer is written."""

    async def is_there() -> bool:
        return await engine.unfinished() == 1 and not await engine.is_silent()

    await leave(url, decoding(stream), is_there)
    return await gone(engine, 0)


async def prefilling_once(url: str, engine: Engine, stream: bool) -> float:
    """Leave while the prompts are read."""

    async def is_there() -> bool:
        return await engine.unfinished() == PROMPTS and await engine.is_silent()

    await leave(url, prefilling(stream), is_there)
    return await gone(engine, 0)


async def queued_once(url: str, engine: Engine, stream: bool) -> float:
    """Leave while all the engine's places are taken by others."""
    crowd = [Connection(url) for _ in range(CROWDS)]
    request = crowd[0].request(CHAT, chat(MODEL, TOKENS, n=SEQUENCES) | {"temperature": 1})
    answers = [asyncio.create_task(connection.ask(request)) for connection in crowd]
    full = CROWDS * SEQUENCES
    while await engine.unfinished() < full or await engine.is_silent():
        for answer in answers:
            _check(answer)

    async def is_there() -> bool:
        return await engine.unfinished() == full + 1

    await leave(url, decoding(stream), is_there)
    took = await gone(engine, full)
    for connection in crowd:
        connection.close()
    await asyncio.gather(*answers, return_exceptions=True)
    await gone(engine, 0)
    return took


CASES = {"queued": queued_once, "prefilling": prefilling_once, "decoding": decoding_once}


async def table(url: str) -> str:
    """All cases."""
    engine = Engine()
    asked = []
    for _ in range(10 * TIMES):
        since = time.perf_counter()
        await engine.unfinished()
        asked.append(time.perf_counter() - since)
    rows = ["| where the request is | reply | gone after, median ms | longest |", "|---|---|--:|--:|"]
    for name, once in CASES.items():
        for stream in (True, False):
            await once(url, engine, stream)
            took = [1000 * await once(url, engine, stream) for _ in range(TIMES)]
            kind = "streamed" if stream else "whole"
            rows.append(f"| {name} | {kind} | {statistics.median(took):.1f} | {max(took):.1f} |")
    rows.append(f"\nAsking the replica itself takes {1000 * statistics.median(asked):.1f} ms.")
    return "\n".join(rows)


def main() -> None:
    read_options(__doc__)
    with rayllm() as server:
        ray.init("auto", namespace="serve", log_to_driver=False)
        try:
            publish("leaving", asyncio.run(table(server.url)))
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
