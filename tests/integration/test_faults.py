"""Faults under load on the real stack: two replicas, two routers, and clients with known answers.

`python -m benchmarks.chaos` has each of them three times; docs/reliability.md shows what it saw.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from io import BufferedIOBase
from typing import Any

import httpx
import psutil
import pytest
import ray

from benchmarks.faults.answers import Ending
from benchmarks.faults.application import MODEL, Address, running
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.experiment import Experiment

# Of a stream, after its last event.
END = b"\r\n0\r\n\r\n"
CLIENTS = 20


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
    experiment = Experiment(address, CLIENTS, pause_s=0.25, calm_s=1.5)
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
    # Each client loses at most what the router had not handed over, or the connection that it had kept.
    assert seen.bad == seen.endings[Ending.LOST] <= CLIENTS, seen.reasons


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


@pytest.mark.parametrize("survivors", [1, 0])
def test_a_stream_outlives_its_router(address: Address, survivors: int) -> None:
    """Deterministically: the router that took the request is killed in the middle of a long answer, alone or with the
    other one. The replica closes the connection at the end of its reply.
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
        assert reader.read() == b""


def request(address: Address, question: str, tokens: int) -> bytes:
    """A request for a stream of so many tokens."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "stream": True}
    raw = json.dumps({**body, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}).encode()
    head = f"POST {httpx.URL(address.url).path}/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
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
