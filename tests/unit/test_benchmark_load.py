"""The benchmark's load generator counts what a server really sent, however it came, and takes no failure for speed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvloop

from benchmarks.connection import Connection
from benchmarks.load import Seen, chat, percentile, run
from benchmarks.paced import Pacer
from benchmarks.serving import Table

TOKENS = 3


def event(content: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}]}, separators=(",", ":")).encode()


ROLE = event("")
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":%d}}' % TOKENS
DONE = b"data: [DONE]"
STREAM = [ROLE, event("a"), event('"usage":{'), event("c"), USAGE, DONE]


@dataclass
class Small:
    """A server that answers each request in the same way."""

    answer: Callable[[asyncio.StreamWriter], Awaitable[None]]
    url: str = ""
    bodies: list[dict[str, object]] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        while head := await self._head(reader):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.bodies.append(json.loads(await reader.readexactly(length)))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await self.answer(writer)
            self.at_once -= 1
        writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@asynccontextmanager
async def serving(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Small]:
    small = Small(answer)
    server = await asyncio.start_server(small.serve, "127.0.0.1", 0)
    small.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield small
    finally:
        server.close()
        for writer in small.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def chunked(*parts: bytes, pause: float = 0, headers: str = "") -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Answers with a stream in these chunks of HTTP."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n" + headers.encode() + b"\r\n"
        )
        for part in parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await asyncio.sleep(pause)
        writer.write(b"0\r\n\r\n")

    return answer


def plain(status: str, body: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    return answer


EVENTS = [part + b"\n\n" for part in STREAM]


async def test_it_counts_tokens_and_requests() -> None:
    async with serving(chunked(*EVENTS, pause=0.002)) as server:
        seen = await run(server.url, "m", 4, 10, TOKENS)
    assert seen.tokens == 10 * TOKENS
    assert len(seen.first_token) == 10
    assert len(seen.gaps) == 10 * (TOKENS - 1)
    assert len(server.bodies) == 10
    assert server.bodies[0] == chat("m", TOKENS)
    assert server.most_at_once == 4
    assert seen.requests_per_s == pytest.approx(10 / seen.wall)
    assert seen.tokens_per_s == pytest.approx(30 / seen.wall)
    assert 0 < seen.own_cpu_share <= 1.1


async def test_connections_are_kept() -> None:
    async with serving(chunked(*EVENTS)) as server:
        await run(server.url, "m", 3, 12, TOKENS)
    assert server.connections == 3


async def test_a_connection_that_the_server_ends_is_opened_again() -> None:
    ending = chunked(*EVENTS, headers="Connection: close\r\n")

    async def answer(writer: asyncio.StreamWriter) -> None:
        await ending(writer)
        writer.close()

    async with serving(answer) as server:
        seen = await run(server.url, "m", 1, 3, TOKENS)
    assert (seen.tokens, server.connections) == (9, 3)


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
async def test_events_are_counted_wherever_they_are_cut(size: int) -> None:
    text = b"".join(EVENTS)
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    async with serving(chunked(*parts)) as server:
        seen = await run(server.url, "m", 1, 2, TOKENS)
    assert (seen.tokens, len(seen.gaps)) == (2 * TOKENS, 2 * (TOKENS - 1))


async def test_times_are_those_of_the_arrival() -> None:
    async with serving(chunked(*EVENTS, pause=0.02)) as server:
        seen = await run(server.url, "m", 1, 1, TOKENS)
    # The role's chunk comes first, and is no token.
    assert 0.018 < seen.first_token_p50 < seen.wall
    assert all(0.01 < gap < seen.wall for gap in seen.gaps)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(plain("404 Not Found", b'{"error":{}}'), id="status"),
        pytest.param(plain("200 OK", b"{}"), id="no stream"),
        pytest.param(chunked(*EVENTS[:-1]), id="no end"),
        pytest.param(chunked(EVENTS[0], b'data: {"error":{"message":"no"}}\n\n'), id="error in the stream"),
    ],
)
async def test_a_failure_is_no_answer(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
    async with serving(answer) as server:
        with pytest.raises(RuntimeError):
            await run(server.url, "m", 1, 1, TOKENS)


async def test_a_broken_connection_is_an_error() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda")
        writer.close()

    async with serving(answer) as server:
        with pytest.raises(ConnectionError):
            await run(server.url, "m", 3, 6, TOKENS)


async def test_an_error_can_be_what_is_asked_for() -> None:
    async with serving(plain("404 Not Found", b'{"error":{}}')) as server:
        connection = Connection(server.url)
        answer = await connection.ask(connection.request("/v1/x", {}))
        connection.close()
    assert (answer.status, answer.body) == (404, b'{"error":{}}')


async def test_it_runs_on_its_own_loop() -> None:
    """As the benchmarks call it, from where no loop runs."""
    async with serving(chunked(*EVENTS)) as server:
        seen = await asyncio.to_thread(lambda: uvloop.run(run(server.url, "m", 4, 8, TOKENS)))
    assert (seen.tokens, server.connections) == (24, 4)


def test_percentiles_stay_within_what_was_seen() -> None:
    values = [float(number) for number in range(1, 102)]
    seen = Seen(1, 1, values, values, 0)
    assert (seen.first_token_p50, seen.first_token_p99) == (51, 100)
    assert (seen.gap_p50, seen.gap_p99) == (51, 100)
    assert percentile([2.0], 99) == 2
    assert percentile([1.0, 2.0], 99) < 2


async def test_the_pacer_wakes_all_in_their_order() -> None:
    pacer, woken = Pacer(), []
    start = asyncio.get_running_loop().time()

    async def stream(delay: float) -> None:
        await pacer.until(start + delay)
        woken.append((delay, asyncio.get_running_loop().time() - start))

    gone = asyncio.create_task(stream(0.02))
    delays = [0.05, 0.01, 0.03, 0.03, 0.0, -1.0, 0.002]
    streams = [asyncio.create_task(stream(delay)) for delay in delays]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(*streams)
    assert sorted(delay for delay, _ in woken) == sorted(delays)
    assert [delay for delay, _ in woken if delay > 0] == sorted(delay for delay in delays if delay > 0)
    assert all(delay <= at < delay + 0.05 for delay, at in woken if delay > 0)


def test_the_table_compares_neighbouring_rounds() -> None:
    table = Table(["rayllm", "vllm", "serve"], {"serve-tuned": "it is not installed"})
    taken = {
        "vllm": [{"tokens/s": 10.0, "gap, ms": 5.0}, {"tokens/s": 20.0, "gap, ms": 6.0}],
        "rayllm": [{"tokens/s": 20.0, "gap, ms": 6.0}, {"tokens/s": 10.0, "gap, ms": 9.0}],
        "serve": [{}, {"tokens/s": 5.0}],
    }
    table.add("1 stream", taken, ["tokens/s", "gap, ms"])
    _, _, speed, gap, *notes = table.text().splitlines()
    assert speed == "| 1 stream | tokens/s | 15 | 15 (×1.25; 0.50–2.00) | 5 (×0.25; 0.25–0.25) |"
    assert gap == "| 1 stream | gap, ms | 5.5 | 7.5 (+2; +1…+3) | – |"
    assert notes == ["", "ray.serve.llm, tuned did not take part: it is not installed"]
