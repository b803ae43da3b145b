"""Generate a load of streamed requests, and record the timing of each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rayllm.client.api.completion import parse_delta
from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import Endpoint, Server


@dataclass
class RequestTrace:
    """Timing of one request. Times are in seconds since the start of the load."""

    index: int
    due_s: float
    """Scheduled send time."""
    sent_s: float | None = None
    token_times: list[float] = field(default_factory=list)
    """Arrival times of the chunks with one or more tokens."""
    last_s: float = 0.0
    """Arrival time of the last event."""
    usage: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    failure: ServerError | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending to the first chunk with a token."""
        return self.token_times[0] - (self.sent_s or 0.0)

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies: times between chunks with tokens."""
        return [after - before for before, after in pairwise(self.token_times)]

    @property
    def e2e_s(self) -> float:
        """End-to-end latency: from sending to the last event."""
        return self.last_s - (self.sent_s or 0.0)

    @property
    def output_tokens(self) -> int:
        """Tokens of the completion, from the server's usage, else the number of chunks."""
        count = self.usage.get("completion_tokens")
        return count if isinstance(count, int) else len(self.token_times)

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the prompt, from the server's usage."""
        count = self.usage.get("prompt_tokens")
        return count if isinstance(count, int) else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is only one."""
        further_tokens = self.output_tokens - 1
        return (self.e2e_s - self.ttft_s) / further_tokens if further_tokens > 0 else None


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times of a Poisson process, in seconds.

    They are scaled so that the last is at count / rate, which gives short runs the exact rate.

    Args:
        count: number of requests.
        rate: requests per second.
        seed: seed of the random times.
    """
    rng, times, now = random.Random(seed), list[float](), 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        times.append(now)
    return [at * count / rate / now for at in times]


class Load:
    """Sends requests, each once, and records a trace of each.

    Args:
        server: the server.
        endpoint: the endpoint.
        bodies: bodies of the requests, as JSON.
        concurrency: requests in flight at once; None is no limit.
        arrivals: send time of each request in seconds (open loop); None sends each as soon as `concurrency` allows
            (closed loop).
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
        self._in_flight = 0
        self.traces: list[RequestTrace] = []
        """Traces of the requests that were due so far, in order, even if `run` is interrupted."""
        self.peak_concurrency = 0
        self.duration_s = 0.0
        self.cpu_s = 0.0
        """CPU time of this process during the load, in seconds."""

    async def run(self) -> None:
        """Send all requests and wait for the last completion. Failures are recorded in the traces."""
        self._started_at, cpu = time.perf_counter(), time.process_time()
        try:
            await (self._closed() if self._arrivals is None else self._open(self._arrivals))
        finally:
            self.duration_s, self.cpu_s = self._now(), time.process_time() - cpu

    async def _closed(self) -> None:
        pending = iter(self._bodies)

        async def client() -> None:
            for body in pending:
                await self._send(self._next(self._now()), body)

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(self._concurrency or len(self._bodies), len(self._bodies))):
                clients.create_task(client())

    async def _open(self, arrivals: Sequence[float]) -> None:
        slots = asyncio.Semaphore(self._concurrency or len(self._bodies))

        async def one(trace: RequestTrace, body: bytes) -> None:
            async with slots:
                await self._send(trace, body)

        async with asyncio.TaskGroup() as requests:
            for due, body in zip(arrivals, self._bodies, strict=True):
                await asyncio.sleep(due - self._now())
                requests.create_task(one(self._next(due), body))

    def _next(self, due_s: float) -> RequestTrace:
        self.traces.append(RequestTrace(len(self.traces), due_s))
        return self.traces[-1]

    async def _send(self, trace: RequestTrace, body: bytes) -> None:
        self._in_flight += 1
        self.peak_concurrency = max(self.peak_concurrency, self._in_flight)
        trace.sent_s = self._now()
        try:
            await self._receive(trace, body)
        except ServerError as error:
            trace.failure = error
        finally:
            self._in_flight -= 1
        self._on_done(trace)

    async def _receive(self, trace: RequestTrace, body: bytes) -> None:
        async for event in self._server.events(self._endpoint, body):
            now = self._now()
            if parse_delta(event) is not None:
                trace.token_times.append(now)
            if usage := event.get("usage"):
                trace.usage = usage
            trace.last_s = now
        trace.is_complete = bool(trace.token_times)
        if not trace.is_complete:
            raise ServerError("the completion holds no token.", "a completion without a token")

    def _now(self) -> float:
        return time.perf_counter() - self._started_at
