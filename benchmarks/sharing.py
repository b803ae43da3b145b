"""How an overloaded model is shared: between tenants, between classes, and what is refused.

python -m benchmarks.sharing           three measurements, about eight minutes
python -m benchmarks.sharing --write   also put the tables into docs/access.md

The engine paces its answers and has few slots, so its peak is known; requests arrive at random (Poisson), whatever
becomes of those before them.

1. Ten tenants, of which one sends 100 times as much as each other, with one router and with four.
2. Ten times the load that the engine can serve.
3. Requests of the class `interactive` alone, and beside a flood of `batch` requests.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks import paced
from benchmarks.compare import PAGE, publish, read_options
from benchmarks.load import percentile
from benchmarks.servers import Server, rayllm
from rayllm.access import Key, KeyFile, new_key
from rayllm.access.key import key_hash

DOCS = PAGE.parent / "access.md"
SLOTS, TENANTS = 16, 10
SECONDS = 60.0


@dataclass
class Seen:
    """What clients of one kind saw: seconds to the first token and to a refusal, and what failed otherwise.

    `began_at` are the times of first tokens, by `time.perf_counter()`.
    """

    first_token: list[float] = field(default_factory=list)
    began_at: list[float] = field(default_factory=list)
    answered: int = 0
    refused: list[float] = field(default_factory=list)
    failed: Counter[Any] = field(default_factory=Counter)


class Load:
    """Clients of one server, each request on a connection of its own, so that all routers get some.

    Args:
        server: the server.
        keys: API keys by name.
        tokens: tokens of an answer.
        pace_ms: milliseconds for each.
    """

    def __init__(self, server: Server, keys: dict[str, str], tokens: int, pace_ms: int) -> None:
        self._url = f"{server.url}/v1/chat/completions"
        self._keys = keys
        question = {"role": "user", "content": "Tell me a story."}
        pace = {"vllm_xargs": {"pace_ms": pace_ms}}
        self._body = {"model": paced.MODEL, "messages": [question], "max_tokens": tokens, "stream": True, **pace}
        self._chance = random.Random(1)

    async def ask(self, key: str, seen: Seen, stream: bool = True) -> None:
        """Send one request."""
        headers = {"Authorization": f"Bearer {self._keys[key]}"}
        began = time.perf_counter()
        try:
            async with self._session.post(self._url, json={**self._body, "stream": stream}, headers=headers) as reply:
                first = await _first_event(reply.content)
                took = time.perf_counter() - began
                if reply.status == 200 and b'"error"' not in first:
                    seen.first_token.append(took)
                    seen.began_at.append(began + took)
                    await reply.read()
                    seen.answered += 1
                elif reply.status in (200, 503):
                    seen.refused.append(took)
                else:
                    seen.failed[reply.status] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            seen.failed[type(error).__name__] += 1

    async def arrivals(self, key: str, rate: float, seconds: float, seen: Seen) -> None:
        """Requests that arrive at random, `rate` in a second; returns after the last answer."""
        tasks, due, end = [], time.monotonic(), time.monotonic() + seconds
        while (due := due + self._chance.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask(key, seen)))
        await asyncio.gather(*tasks)

    async def clients(self, key: str, count: int, seconds: float, seen: Seen, stream: bool = True) -> None:
        """Clients that ask again as soon as they are answered or refused."""
        end = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < end:
                refused = len(seen.refused)
                await self.ask(key, seen, stream)
                if len(seen.refused) > refused:
                    await asyncio.sleep(0.5)

        await asyncio.gather(*(client() for _ in range(count)))

    async def run(self, measure: Callable[[Load], Awaitable[Any]]) -> Any:
        """What `measure` returns."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self._session:
            seen = Seen()
            while not seen.answered:
                # Requests wait for the engine to start, or are refused.
                await self.ask("chat", seen)
            return await measure(self)


async def _first_event(content: aiohttp.StreamReader) -> bytes:
    """The first line that is no comment of a stream that waits for a replica."""
    while (line := await content.readline()).startswith(b":") or line == b"\n":
        pass
    return line


@contextmanager
def service(tokens: int, pace_ms: int, queue_timeout_s: float, routers: int = 1) -> Iterator[Load]:
    """A service with a key for each tenant and class, whose engine answers SLOTS requests at once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = paced.write_model(folder)
        model = yaml.safe_load(path.read_text())
        model["deployment_config"] = {"max_ongoing_requests": SLOTS, "max_queued_requests": 1000}
        path.write_text(yaml.safe_dump(model))
        keys, file = {}, KeyFile(str(folder / "keys.yaml"))
        with file.change() as listed:
            for key, priority in {
                **dict.fromkeys(_tenants(), "standard"),
                "chat": "interactive",
                "bulk": "batch",
            }.items():
                keys[key] = new_key()
                listed.append(Key(name=key, hash=key_hash(keys[key], file.salt), priority=priority))
        options = {"keys": file.uri, "queue_timeout_s": queue_timeout_s, "num_replicas": routers}
        with rayllm(path, paced.variables(folder), router=options) as server:
            yield Load(server, keys, tokens, pace_ms)


def _tenants() -> list[str]:
    return [f"tenant-{number}" for number in range(TENANTS)]


def shares_table() -> str:
    """Jain's index of the tenants' answers, 1 if all get the same."""
    rows = ["| routers | answers of the busy tenant | of each other, on average | Jain's index |", "|--:|--:|--:|--:|"]
    for routers in (1, 4):
        # 16 slots and answers of two seconds: 8 requests a second, 0.8 for each tenant.
        with service(tokens=20, pace_ms=100, queue_timeout_s=30, routers=routers) as load:
            answers = asyncio.run(load.run(_answers_by_tenant))
        busy, *others = answers
        jain = sum(answers) ** 2 / (len(answers) * sum(each**2 for each in answers))
        rows.append(f"| {routers} | {busy} | {sum(others) / len(others):.1f} | {jain:.3f} |")
    return "\n".join(rows)


async def _answers_by_tenant(load: Load) -> list[int]:
    """Each sends 1.5 times its share, the first of them 100 times as much; counted once all of them have to wait."""
    seen = {tenant: Seen() for tenant in _tenants()}
    busy, *others = seen
    start, until_all_wait_s = time.perf_counter(), SECONDS / 2
    seconds = until_all_wait_s + SECONDS
    arrivals = [load.arrivals(tenant, 1.2, seconds, seen[tenant]) for tenant in others]
    await asyncio.gather(load.arrivals(busy, 120, seconds, seen[busy]), *arrivals)
    _check(*seen.values())
    return [sum(until_all_wait_s <= at - start < seconds for at in each.began_at) for each in seen.values()]


def overload_table() -> str:
    """Goodput, time to the first token and to a refusal, at the peak and beyond it."""
    # Answers of a second: 16 requests a second.
    with service(tokens=50, pace_ms=20, queue_timeout_s=1) as load:
        phases = asyncio.run(load.run(_overload))
    peak = phases["peak"].answered
    rows = [
        "| load | answered, of peak | first token p50, s | p99, s | refused | refusal p50, ms | p99, ms |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, seen in phases.items():
        refusals = [f"{1000 * percentile(seen.refused, share):.0f}" if seen.refused else "–" for share in (50, 99)]
        first = [f"{percentile(seen.first_token, share):.2f}" for share in (50, 99)]
        cells = [name, f"{seen.answered / peak:.0%}", *first, f"{len(seen.refused):,}", *refusals]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


async def _overload(load: Load) -> dict[str, Seen]:
    phases = {name: Seen() for name in ("peak", "1 ×", "10 ×")}
    await load.clients("tenant-0", SLOTS, SECONDS, phases["peak"])
    rate = phases["peak"].answered / SECONDS
    await load.arrivals("tenant-0", rate, SECONDS, phases["1 ×"])
    await load.arrivals("tenant-0", 10 * rate, SECONDS, phases["10 ×"])
    _check(*phases.values())
    return phases


def classes_table() -> str:
    """Time to the first token of interactive requests, alone and beside a flood of batch requests."""
    rows = ["| | first token p50, ms | p99, ms | batch requests answered a second |", "|---|--:|--:|--:|"]
    with service(tokens=50, pace_ms=20, queue_timeout_s=60) as load:
        for name, (chat, bulk) in asyncio.run(load.run(_classes)).items():
            first = [f"{1000 * percentile(chat.first_token, share):.0f}" for share in (50, 99)]
            rows.append(f"| {name} | {first[0]} | {first[1]} | {bulk.answered / SECONDS:.1f} |")
    return "\n".join(rows)


async def _classes(load: Load) -> dict[str, tuple[Seen, Seen]]:
    phases = {name: (Seen(), Seen()) for name in ("alone", "beside 200 clients of `batch`")}
    for flooded, (chat, bulk) in enumerate(phases.values()):
        # A quarter of what the engine can do.
        work = [load.arrivals("chat", SLOTS / 4, SECONDS, chat)]
        if flooded:
            work.append(load.clients("bulk", 200, SECONDS, bulk, stream=False))
        await asyncio.gather(*work)
        _check(chat, bulk)
    return phases


def _check(*seen: Seen) -> None:
    failed = sum((each.failed for each in seen), Counter())
    if failed:
        raise SystemExit(f"requests failed: {dict(failed)}")


if __name__ == "__main__":
    read_options(__doc__)
    publish("shares", shares_table(), DOCS)
    publish("overload", overload_table(), DOCS)
    publish("classes", classes_table(), DOCS)
