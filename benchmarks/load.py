"""A closed-loop load of streamed chats, and what a client sees of it."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass

import aiohttp

QUESTION = "Tell me a story."


@dataclass(frozen=True)
class Seen:
    """What the clients saw in one round. Times in seconds."""

    tokens: int
    wall: float
    first_token: list[float]
    gaps: list[float]

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second over all streams."""
        return self.tokens / self.wall

    @property
    def first_token_p50(self) -> float:
        """Median time from sending a request to the first token of its answer."""
        return statistics.median(self.first_token)

    @property
    def gap_p99(self) -> float:
        """99th percentile of the time between two chunks of an answer."""
        return statistics.quantiles(self.gaps, n=100)[98]


async def run(base_url: str, model: str, concurrency: int, requests: int, max_tokens: int) -> Seen:
    """Ask `requests` times, `concurrency` at once, for answers of exactly `max_tokens` tokens.

    Raises:
        RuntimeError: a request failed.
    """
    gate = asyncio.Semaphore(concurrency)
    first_token: list[float] = []
    gaps: list[float] = []

    async def one(session: aiohttp.ClientSession) -> int:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with gate:
            last = time.perf_counter()
            started, tokens, seen_first = last, 0, False
            async with session.post(f"{base_url}/v1/chat/completions", json=body) as reply:
                if reply.status != 200:
                    raise RuntimeError(f"{reply.status}: {await reply.text()}")
                async for line in reply.content:
                    if not line.startswith(b"data: {"):
                        continue
                    now = time.perf_counter()
                    if b'"usage":{' in line:
                        tokens = json.loads(line[6:])["usage"]["completion_tokens"]
                    elif b'"content":""' in line:
                        continue  # the opening chunk names the role and holds no token
                    elif not seen_first:
                        first_token.append(now - started)
                        seen_first = True
                    else:
                        gaps.append(now - last)
                    last = now
        return tokens

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        started = time.perf_counter()
        tokens = sum(await asyncio.gather(*(one(session) for _ in range(requests))))
        return Seen(tokens, time.perf_counter() - started, first_token, gaps)
