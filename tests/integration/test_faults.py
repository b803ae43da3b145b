"""Faults under load on the real stack: two replicas, two routers, and clients with known answers.

`python -m benchmarks.chaos` has each of them three times; docs/reliability.md shows what it saw.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from io import BufferedIOBase
from typing import Any

import httpx
import psutil
import pytest
import ray
import yaml

from benchmarks.faults.answers import Ending
from benchmarks.faults.application import MODEL, REPLICAS, ROUTERS, Address, running
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.experiment import Experiment
from benchmarks.servers import DEMO

# Of a replica.
SLOTS = yaml.safe_load(DEMO.read_text())["engine_kwargs"]["max_num_seqs"]
# Of a stream, after its last event.
END = b"\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def address(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """An application of its own: its processes are killed."""
    with suppress(ValueError):
        ray.kill(quota_actor())
    with running(tmp_path_factory.mktemp("faults"), "/faults") as address:
        yield address


def quota_actor() -> Any:
    """The actor of quotas.

    Raises:
        ValueError: there is none.
    """
    return ray.get_actor("rayllm-quotas", namespace="rayllm")


@pytest.fixture
async def under_load(address: Address) -> AsyncIterator[Experiment]:
    """The application with clients that ask all the time."""
    # Clients that leave the machine some time, in which what was lost starts again.
    experiment = Experiment(address, pause_s=0.25, calm_s=1.5)
    async with experiment.load():
        yield experiment


async def test_what_keeps_the_quotas_of_keys_starts_before_the_first_request(address: Address) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(ValueError):
                quota_actor()
                return
            await asyncio.sleep(0.1)


async def test_a_controller_that_dies_is_noticed_by_no_client(under_load: Experiment) -> None:
    replicas = under_load.cluster.replicas()
    seen = await under_load.suffer("kill -9 of the controller")
    assert seen.bad == 0, seen.reasons
    assert under_load.cluster.replicas() == replicas, "the new controller keeps what runs"


async def test_a_replica_that_is_told_to_end_answers_what_it_has(under_load: Experiment) -> None:
    seen = await under_load.suffer("SIGTERM to a replica")
    assert seen.bad == 0, seen.reasons


@pytest.mark.parametrize("fault", ["kill -9 of an engine", "SIGSTOP of an engine"])
async def test_a_lost_engine_fails_at_most_the_streams_it_had_begun(under_load: Experiment, fault: str) -> None:
    seen = await under_load.suffer(fault)
    begun = seen.endings[Ending.EVENT] + seen.endings[Ending.CUT]
    assert seen.bad == begun <= 20, seen.reasons


async def test_a_router_that_dies_breaks_no_reply_that_a_replica_writes(under_load: Experiment) -> None:
    seen = await under_load.suffer("kill -9 of a router")
    # Clients lose what the router had not handed over, and connections that they had kept.
    assert seen.bad == seen.endings[Ending.LOST] <= 40, seen.reasons


async def test_routers_that_die_refuse_nobody(address: Address) -> None:
    """While there is no router, connections wait for the next one."""
    routers = Cluster().routers()
    for router in routers:
        router.kill()
        router.wait()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}
    async with httpx.AsyncClient(timeout=120, headers=address.headers) as client:
        replies = await asyncio.gather(
            *(client.post(f"{address.url}/v1/chat/completions", json=body) for _ in range(20))
        )
    assert [reply.status_code for reply in replies] == [200] * 20, [reply.text for reply in replies]
    answers = {reply.json()["choices"][0]["message"]["content"] for reply in replies}
    assert answers == {"The capital of Italy is Rome."}


async def test_requests_that_wait_in_routers_that_die_are_answered_by_the_next(address: Address) -> None:
    routers, engines = await all_processes()
    # More than both replicas take at once.
    requests = 2 * SLOTS + 40
    async with ask_for_capital(address, requests) as asking:
        for engine in engines:
            engine.suspend()
        try:
            async with asyncio.timeout(60):
                # The routers ask the replicas for slots with some of them, again and again.
                while await are_missing(address, requests, least_waiting=20):
                    await asyncio.sleep(0.05)
            suspend(routers)
            kill(routers)
        finally:
            for engine in engines:
                engine.resume()
        replies = await asyncio.gather(*asking, return_exceptions=True)
    assert [reply for reply in replies if isinstance(reply, BaseException)] == []
    assert [reply.text for reply in replies if isinstance(reply, httpx.Response) and reply.status_code != 200] == []


@pytest.mark.parametrize("linger_s", [0, 1])
async def test_requests_whose_engine_dies_with_their_router_are_answered_by_the_next(
    address: Address, linger_s: float
) -> None:
    """Either right after it, or while the router is still being killed: it reads no more, but its sockets are open."""
    routers, engines = await all_processes()
    async with ask_for_capital(address, 2 * SLOTS) as asking:
        for engine in engines:
            engine.suspend()
        try:
            async with asyncio.timeout(60):
                while await are_missing(address, 2 * SLOTS, least_waiting=0):
                    await asyncio.sleep(0.05)
            suspend(routers)
            if not linger_s:
                kill(routers)
            engines[0].kill()
            if linger_s:
                # In which the engine's replica notices.
                await asyncio.sleep(linger_s)
                kill(routers)
        finally:
            engines[1].resume()
        replies = await asyncio.gather(*asking, return_exceptions=True)
    assert [reply for reply in replies if isinstance(reply, BaseException)] == []
    assert [reply.text for reply in replies if isinstance(reply, httpx.Response) and reply.status_code != 200] == []


def suspend(routers: list[psutil.Process]) -> None:
    """Have none of them get a request of one killed before it: it would be quarantined once two have died with it."""
    for router in routers:
        router.suspend()


def kill(routers: list[psutil.Process]) -> None:
    """Kill them."""
    for router in routers:
        router.kill()


async def all_processes() -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The routers and the engines, once all of them are up after an earlier test."""
    cluster = Cluster()
    async with asyncio.timeout(120):
        while True:
            routers, engines = cluster.routers(), cluster.engines()
            is_complete = (len(routers), len(engines)) == (ROUTERS, REPLICAS)
            if is_complete and await asyncio.to_thread(cluster.is_whole):
                return routers, engines
            await asyncio.sleep(0.1)


@asynccontextmanager
async def ask_for_capital(address: Address, times: int) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """Ask so many times at once, from as many connections. Every other request is a browser's, which is relayed."""
    url = f"{address.url}/v1/chat/completions"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, headers=address.headers, limits=limits) as client:
        browsers = {"origin": "https://example.com"}
        replies = (client.post(url, json=body, headers=browsers if number % 2 else {}) for number in range(times))
        yield [asyncio.create_task(reply) for reply in replies]


async def are_missing(address: Address, requests: int, least_waiting: int) -> bool:
    """Whether the routers do not have all these requests yet, or fewer wait for a replica."""
    async with httpx.AsyncClient(timeout=60, headers=address.headers) as client:
        page = (await client.get(f"{address.url}/metrics")).text
    counts = {"waiting": 0, "in_hand": 0}
    for name, count in re.findall(r"^rayllm_requests_(waiting|in_hand)\{[^}]*\} (\S+)", page, re.MULTILINE):
        counts[name] += int(float(count))
    return sum(counts.values()) < requests or counts["waiting"] < least_waiting


@pytest.mark.parametrize("survivors", [1, 0])
def test_a_stream_outlives_its_router(address: Address, survivors: int) -> None:
    """Deterministically: the router that took the request is killed in the middle of a long answer, alone or with the
    other one, and the client asks again on the same connection.
    """
    url = httpx.URL(address.url)
    with socket.create_connection((url.host, url.port or 0), timeout=120) as connection:
        reader = connection.makefile("rb")
        connection.sendall(request(address, "Tell me a story.", 300))
        head = read_to(reader, b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"connection: close" not in head
        received = read_to(reader, b"\n\n")
        taken_by, others = routers_of(connection)
        for router in [taken_by, *others[survivors:]]:
            router.kill()
            router.wait()
        received += read_to(reader, END)
        assert received.endswith(b"data: [DONE]\n\n" + END)
        assert b'"finish_reason":"length"' in received
        for _ in range(2):
            connection.sendall(request(address, "What is the capital of Italy?", 3))
            assert b"200 OK" in read_to(reader, b"\r\n\r\n")
            assert read_to(reader, END).endswith(b"data: [DONE]\n\n" + END)
        assert routers_of(connection)[0] != taken_by


def request(address: Address, question: str, tokens: int) -> bytes:
    """A request for a stream of so many tokens."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "stream": True}
    raw = json.dumps({**body, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}).encode()
    head = f"POST {httpx.URL(address.url).path}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    head += f"authorization: Bearer {address.key}\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def read_to(reader: BufferedIOBase, end: bytes) -> bytes:
    """What is on the connection up to an end, that included."""
    received = b""
    while not received.endswith(end):
        line = reader.readline()
        assert line, f"the connection was closed after {received!r}"
        received += line
    return received


def routers_of(connection: socket.socket) -> tuple[psutil.Process, list[psutil.Process]]:
    """The router that has a client's connection, and the others."""
    client, routers = connection.getsockname(), Cluster().routers()
    [taken_by] = [router for router in routers if client in (each.raddr for each in router.net_connections())]
    return taken_by, [router for router in routers if router != taken_by]
