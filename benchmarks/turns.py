"""What one turn of a server in a benchmark of serving is, and what it gives."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

import uvloop

from benchmarks.connection import Answer, Connection
from benchmarks.load import CHAT, ask_all, chat, percentile, run, summary
from benchmarks.paced import PACE_S
from benchmarks.servers import Server

IDLE = 1000
SMALL = 8
LARGE_TOKENS = 100_000
REFUSALS = 400
# Processes that have work for each request: vLLM's own server, a router, a replica, and an engine.
_WORK = {"main", "Router", "paced", "rayllm-demo", "EngineCore"}
ARRIVALS = 400

Round = Mapping[str, float]
"""What one turn of one server gave, by measure."""


@dataclass(frozen=True)
class Running:
    """A server that takes part, and what it serves."""

    peer: str
    server: Server
    model: str


def streams_turn(running: Running, streams: int, tokens: int, requests: int | None = None) -> Round:
    """A round of chats: two a stream, or one where they are so many that it lasts long enough."""
    before = running.server.cpu_s()
    requests = requests or (streams if streams > 128 else 2 * streams)
    seen = uvloop.run(run(running.server.url, running.model, streams, requests, tokens, running.server.headers))
    spent = running.server.cpu_s() - before
    return {
        "tokens/s": seen.tokens_per_s,
        "tokens / CPU s": seen.tokens / spent,
        "CPU s / 1000 tokens": 1000 * spent / seen.tokens,
        "first token p50, ms": 1000 * seen.first_token_p50,
        "first token p99, ms": 1000 * seen.first_token_p99,
        "gap p50, ms": 1000 * seen.gap_p50,
        "gap p99, ms": 1000 * seen.gap_p99,
        "load's own share of a core": seen.own_cpu_share,
    }


def large_turn(running: Running) -> Round:
    """Gaps of small streams alone, and while one large prompt is taken in."""
    return uvloop.run(_large(running))


async def _large(running: Running) -> Round:
    url, model = running.server.url, running.model
    alone = await _small_gaps(url, model)
    connection = Connection(url)
    large = connection.request(CHAT, chat(model, 1, question=" the" * LARGE_TOKENS))

    async def ask() -> float:
        await asyncio.sleep(0.3)
        answer = await connection.ask(large)
        answer.check()
        if answer.usage["prompt_tokens"] < LARGE_TOKENS:
            raise RuntimeError(f"the large prompt had {answer.usage['prompt_tokens']} tokens")
        return answer.token_times[0] - answer.sent

    beside, first_token = await asyncio.gather(_small_gaps(url, model), ask())
    connection.close()
    return {
        "gap max alone, ms": 1000 * max(alone),
        "gap max beside it, ms": 1000 * max(beside),
        "gap p99 beside it, ms": 1000 * percentile(beside, 99),
        "first token of the large one, ms": 1000 * first_token,
    }


async def _small_gaps(url: str, model: str) -> list[float]:
    connections = [Connection(url) for _ in range(SMALL)]
    answers = await ask_all(connections, connections[0].request(CHAT, chat(model, 128)), SMALL)
    for answer, connection in zip(answers, connections, strict=True):
        answer.check()
        connection.close()
    return summary(answers, 1, 0).gaps


def flood_turn(running: Running) -> Round:
    """Requests for an unknown model as fast as they are refused, alone and beside small streams."""
    before = running.server.cpu_s()
    wall = uvloop.run(_flood(running))
    spent = running.server.cpu_s() - before
    gaps = uvloop.run(_beside_flood(running))
    return {
        "refusals/s": REFUSALS / wall,
        "CPU ms / refusal": 1000 * spent / REFUSALS,
        "gap p99 beside it, ms": 1000 * percentile(gaps, 99),
    }


async def _flood(running: Running) -> float:
    connections = [Connection(running.server.url) for _ in range(16)]
    request = connections[0].request(CHAT, chat("no-such-model", 1))
    started = time.perf_counter()
    answers = await ask_all(connections, request, REFUSALS)
    wall = time.perf_counter() - started
    if any(answer.status != 404 for answer in answers):
        raise RuntimeError(f"statuses of refusals: { ({answer.status for answer in answers}) }")
    for connection in connections:
        connection.close()
    return wall


async def _beside_flood(running: Running) -> list[float]:
    small = asyncio.create_task(_small_gaps(running.server.url, running.model))
    await asyncio.sleep(0.1)
    while not small.done():
        await _flood(running)
    return await small


def idle_turn(running: Running) -> Round:
    """Memory by kind of process before, with and after a thousand streams that wait for their second word."""
    return uvloop.run(_idle(running))


async def _idle(running: Running) -> Round:
    # The first requests bring in what a process holds for good.
    await _small_gaps(running.server.url, running.model)
    before = running.server.memory_mb()
    connections = [Connection(running.server.url) for _ in range(IDLE)]
    request = connections[0].request(CHAT, chat(running.model, 2, vllm_xargs={"pace_ms": 600_000}))
    waiting = [asyncio.create_task(connection.ask(request)) for connection in connections]
    async with asyncio.timeout(120):
        while any(not connection.answer.token_times for connection in connections):
            await asyncio.sleep(0.5)
    during = running.server.memory_mb()
    for connection in connections:
        connection.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(5)
    after = running.server.memory_mb()
    kinds = {f"KB / stream, {kind}": during[kind] - held for kind, held in before.items()}
    return {
        "MB before": sum(before.values()),
        f"MB with {IDLE} streams": sum(during.values()),
        "MB after": sum(after.values()),
        **{kind: 1000 * grown / IDLE for kind, grown in kinds.items() if grown >= 1},
    }


def unary_turn(running: Running, at_once: int, answers: int) -> Round:
    """Answers of one token that are no streams; each connection sends the next request when it has its answer."""
    before = running.server.cpu_by_kind()
    wall, took = uvloop.run(_unary(running, at_once, answers))
    after = running.server.cpu_by_kind()
    spent = {kind: seconds - before.get(kind, 0.0) for kind, seconds in after.items()}
    return {
        "answers/s": answers / wall,
        "latency p50, ms": 1000 * percentile(took, 50),
        "latency p99, ms": 1000 * percentile(took, 99),
        "CPU ms / answer": 1000 * sum(spent.values()) / answers,
        **{f"CPU ms / answer of {kind}": 1000 * seconds / answers for kind, seconds in spent.items() if kind in _WORK},
    }


async def _unary(running: Running, at_once: int, answers: int) -> tuple[float, list[float]]:
    """The seconds of all answers together, and of each."""
    connections = [Connection(running.server.url) for _ in range(at_once)]
    body = chat(running.model, 1) | {"stream": False, "stream_options": None}
    request, left, took = connections[0].request(CHAT, body), iter(range(answers)), list[float]()

    async def client(connection: Connection) -> None:
        for _ in left:
            answer = await connection.ask(request)
            took.append(time.perf_counter() - answer.sent)
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {answer.body[:2000]!r}")

    began = time.perf_counter()
    await asyncio.gather(*map(client, connections))
    wall = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return wall, took


def arrivals_turn(running: Running, streams: int, tokens: int) -> Round:
    """Streams that come by chance, as many at once as `streams` on average; nobody waits for another one's end."""
    return uvloop.run(_arrivals(running, streams, tokens))


async def _arrivals(running: Running, streams: int, tokens: int) -> Round:
    chance = random.Random(streams)
    rate = streams / (tokens * PACE_S)
    # Opened before, as a busy client's are.
    connections = [Connection(running.server.url) for _ in range(2 * streams)]
    request = connections[0].request(CHAT, chat(running.model, tokens))
    await ask_all(connections, connections[0].request(CHAT, chat(running.model, 1)), len(connections))
    answers: list[Answer] = []

    async def one() -> None:
        connection = connections.pop() if connections else Connection(running.server.url)
        answers.append(await connection.ask(request))
        connections.append(connection)

    async with asyncio.TaskGroup() as group:
        for _ in range(ARRIVALS):
            group.create_task(one())
            await asyncio.sleep(chance.expovariate(rate))
    for answer in answers:
        answer.check()
    for connection in connections:
        connection.close()
    seen = summary(answers, 1, 0)
    return {
        "first token p50, ms": 1000 * seen.first_token_p50,
        "first token p99, ms": 1000 * seen.first_token_p99,
        "gap p50, ms": 1000 * seen.gap_p50,
        "gap p99, ms": 1000 * seen.gap_p99,
    }
