"""A closed-loop load of streamed chats, and what a client sees of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from benchmarks.connection import Answer, Connection

CHAT = "/v1/chat/completions"
QUESTION = "Tell me a story."


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile with linear interpolation, as NumPy's default; NaN of no values.

    Args:
        values: the values.
        share: from 0 to 100.
    """
    ordered, at = sorted(values), (len(values) - 1) * share / 100
    if not ordered:
        return math.nan
    lower, upper = ordered[math.floor(at)], ordered[math.ceil(at)]
    return lower + (upper - lower) * (at - math.floor(at))


@dataclass(frozen=True)
class Seen:
    """What the clients saw in one round. Times in seconds."""

    tokens: int
    wall: float
    first_token: list[float]
    gaps: list[float]
    own_cpu_s: float
    """CPU seconds that the load itself took; where they come near to the wall time, it is what was measured."""

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second over all streams."""
        return self.tokens / self.wall

    @property
    def requests_per_s(self) -> float:
        """Answers a second over all streams."""
        return len(self.first_token) / self.wall

    @property
    def first_token_p50(self) -> float:
        """Median time from sending a request to the first token of its answer."""
        return percentile(self.first_token, 50)

    @property
    def first_token_p99(self) -> float:
        """99th percentile of the same."""
        return percentile(self.first_token, 99)

    @property
    def gap_p50(self) -> float:
        """Median time between two chunks of an answer."""
        return percentile(self.gaps, 50)

    @property
    def gap_p99(self) -> float:
        """99th percentile of the same."""
        return percentile(self.gaps, 99)

    @property
    def own_cpu_share(self) -> float:
        """The part of one core that the load itself took."""
        return self.own_cpu_s / self.wall


def chat(model: str, max_tokens: int, question: str = QUESTION, **more: Any) -> dict[str, Any]:
    """A request for an answer of exactly `max_tokens` tokens, streamed."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "min_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def run(
    base_url: str,
    model: str,
    concurrency: int,
    requests: int,
    max_tokens: int,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Seen:
    """Ask `requests` times, `concurrency` at once, for answers of exactly `max_tokens` tokens.

    Raises:
        RuntimeError: a request failed.
        ConnectionError: the server cannot be reached, or broke a connection.
    """
    connections = [Connection(base_url) for _ in range(concurrency)]
    request = connections[0].request(CHAT, chat(model, max_tokens), headers)
    cpu, started = time.process_time(), time.perf_counter()
    try:
        answers = await ask_all(connections, request, requests)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    finally:
        for connection in connections:
            connection.close()
    for answer in answers:
        answer.check()
    return summary(answers, wall, cpu)


async def ask_all(connections: Sequence[Connection], request: bytes, times: int) -> list[Answer]:
    """Send the same request `times` times, each over the connection that is free next."""
    answers: list[Answer] = []
    left = iter(range(times))

    async def client(connection: Connection) -> None:
        for _ in left:
            answers.append(await connection.ask(request))

    await asyncio.gather(*map(client, connections))
    return answers


def summary(answers: Sequence[Answer], wall: float, own_cpu_s: float) -> Seen:
    """What the answers of one round say together."""
    first = [answer.token_times[0] - answer.sent for answer in answers if answer.token_times]
    gaps: list[float] = []
    for answer in answers:
        times = answer.token_times
        gaps += [later - sooner for sooner, later in pairwise(times)]
    tokens = sum(answer.usage.get("completion_tokens", 0) for answer in answers)
    return Seen(tokens, wall, first, gaps, own_cpu_s)
