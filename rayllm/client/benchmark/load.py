"""A load of streamed requests, and what their client sees."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rayllm.client.api.completion import piece
from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import Endpoint, Server


@dataclass
class RequestTrace:
    """What was seen of one request. Times in seconds since the load began."""

    index: int
    due_s: float
    """When it was to be sent."""
    sent_s: float | None = None
    token_times: list[float] = field(default_factory=list)
    """When each chunk with a token, or several, came."""
    last_s: float = 0.0
    """When its last event came."""
    usage: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    failure: ServerError | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending the request to the first chunk with a token."""
        return self.token_times[0] - (self.sent_s or 0.0)

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies: the times between two chunks with tokens."""
        return [later - sooner for sooner, later in pairwise(self.token_times)]

    @property
    def e2e_s(self) -> float:
        """End-to-end latency: from sending the request to the last event of its answer."""
        return self.last_s - (self.sent_s or 0.0)

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer by the server's usage; where it tells none, the chunks that came."""
        told = self.usage.get("completion_tokens")
        return told if isinstance(told, int) else len(self.token_times)

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the prompt by the server's usage."""
        told = self.usage.get("prompt_tokens")
        return told if isinstance(told, int) else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is only one."""
        later = self.output_tokens - 1
        return (self.e2e_s - self.ttft_s) / later if later > 0 else None


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which requests of a Poisson process arrive.

    They are stretched so that the last is at count / rate: a short run has the rate that was asked for, too.

    Args:
        count: of requests.
        rate: requests a second.
        seed: the same gives the same times.
    """
    chance, times, now = random.Random(seed), list[float](), 0.0
    for _ in range(count):
        now += chance.expovariate(rate)
        times.append(now)
    return [at * count / rate / now for at in times]


class Load:
    """Sends requests, each once.

    Args:
        server: where to.
        endpoint: which one of its.
        bodies: the requests, as JSON.
        concurrency: requests under way at once; None is no limit.
        arrivals: seconds at which each is due (an open loop); None sends each as soon as there is room (a closed one).
        on_done: called after each request.
    """

    def __init__(
        self,
        server: Server,
        endpoint: Endpoint,
        bodies: Sequence[bytes],
        concurrency: int | None,
        arrivals: Sequence[float] | None = None,
        on_done: Callable[[RequestTrace], None] = lambda _: None,
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._bodies = bodies
        self._concurrency = concurrency
        self._arrivals = arrivals
        self._on_done = on_done
        self._under_way = 0
        self.seen: list[RequestTrace] = []
        """The requests that were due so far, in their order. It is there if `run` is broken off, too."""
        self.most_at_once = 0
        self.duration_s = 0.0
        self.own_cpu_s = 0.0
        """CPU seconds of this process meanwhile."""

    async def run(self) -> None:
        """Send them all, and wait for the last answer. No failure of the server raises."""
        self._began, cpu = time.perf_counter(), time.process_time()
        try:
            await (self._closed() if self._arrivals is None else self._open(self._arrivals))
        finally:
            self.duration_s, self.own_cpu_s = self._now(), time.process_time() - cpu

    async def _closed(self) -> None:
        waiting = iter(self._bodies)

        async def client() -> None:
            for body in waiting:
                await self._send(self._next(self._now()), body)

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(self._concurrency or len(self._bodies), len(self._bodies))):
                clients.create_task(client())

    async def _open(self, arrivals: Sequence[float]) -> None:
        room = asyncio.Semaphore(self._concurrency or len(self._bodies))

        async def one(seen: RequestTrace, body: bytes) -> None:
            async with room:
                await self._send(seen, body)

        async with asyncio.TaskGroup() as requests:
            for due, body in zip(arrivals, self._bodies, strict=True):
                await asyncio.sleep(due - self._now())
                requests.create_task(one(self._next(due), body))

    def _next(self, due_s: float) -> RequestTrace:
        self.seen.append(RequestTrace(len(self.seen), due_s))
        return self.seen[-1]

    async def _send(self, seen: RequestTrace, body: bytes) -> None:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        seen.sent_s = self._now()
        try:
            await self._take(seen, body)
        except ServerError as error:
            seen.failure = error
        finally:
            self._under_way -= 1
        self._on_done(seen)

    async def _take(self, seen: RequestTrace, body: bytes) -> None:
        async for event in self._server.events(self._endpoint, body):
            now = self._now()
            if piece(event) is not None:
                seen.token_times.append(now)
            if usage := event.get("usage"):
                seen.usage = usage
            seen.last_s = now
        seen.is_complete = bool(seen.token_times)
        if not seen.is_complete:
            raise ServerError("the answer holds no token.", "an answer without a token")

    def _now(self) -> float:
        return time.perf_counter() - self._began
