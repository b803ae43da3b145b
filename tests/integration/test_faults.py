"""Faults under load on the real stack: two replicas, two routers, and clients that compare every answer.

`python -m benchmarks.chaos` injects all faults, as often as you like; docs/reliability.md shows what it saw.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
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
from benchmarks.faults.report import table
from benchmarks.faults.tally import Tally

pytestmark = pytest.mark.timeout(900)

# Of a stream, after its last event.
END = b"\r\n0\r\n\r\n"
CLIENTS = 12
# The others take half a minute each, or are in test_continuation.py and test_scaling.py.
INJECTED = (
    "kill -9 of the controller",
    "SIGTERM to a replica",
    "kill -9 of a replica",
    "SIGSTOP of an engine",
    "a rolling update",
    "full disk of a replica",
    "kill -9 of the actor of quotas",
    "kill -9 of the actor of loaded adapters",
    "kill -9 of a router",
)
# With a replica, its engine or its node, streams may end that no other replica can continue.
REPLICAS_DIE = {"kill -9 of a replica", "SIGSTOP of an engine"}
# A router takes with it what it has not handed over yet, and connections that clients use again while they close.
ROUTERS_DIE = {"kill -9 of a router"}
# Of the streams under way whose replica is lost, so many have to be continued and end right.
LEAST_CONTINUED = 0.9


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


async def test_what_keeps_the_quotas_of_keys_starts_before_the_first_request(address: Address) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(ValueError):
                quota_actor()
                return
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def experiment(address: Address) -> Experiment:
    # Clients that leave the machine some time, in which what was lost starts again.
    return Experiment(address, CLIENTS, pause_s=0.5, calm_s=1.5)


@pytest.fixture(scope="module")
def kept() -> dict[str, bool]:
    """Whether the same replicas ran before and after each fault."""
    return {}


@pytest.fixture(scope="module")
def seen(experiment: Experiment, kept: dict[str, bool]) -> dict[str, Tally]:
    """What clients saw of each fault, one after another."""

    async def suffer_all() -> dict[str, Tally]:
        async with experiment.load():
            return {fault: await suffer(fault) for fault in INJECTED}

    async def suffer(fault: str) -> Tally:
        replicas = experiment.cluster.replicas()
        tally = await experiment.suffer(fault)
        kept[fault] = experiment.cluster.replicas() == replicas
        return tally

    found = asyncio.run(suffer_all())
    print(table(found))
    return found


@pytest.mark.parametrize("fault", INJECTED)
def test_no_answer_is_wrong_and_no_stream_ends_in_silence(seen: dict[str, Tally], fault: str) -> None:
    tally = seen[fault]
    excused = (Ending.EVENT,) if fault in REPLICAS_DIE else (Ending.LOST,) if fault in ROUTERS_DIE else ()
    assert tally.bad == sum(tally.endings[ending] for ending in excused) <= CLIENTS, tally.reasons


def test_a_new_controller_keeps_what_runs(seen: dict[str, Tally], kept: dict[str, bool]) -> None:
    assert kept["kill -9 of the controller"]


def test_clients_are_answered_meanwhile(seen: dict[str, Tally]) -> None:
    # What a fault of a second or two takes may be less than an answer takes.
    assert sum(tally.endings[Ending.RIGHT] for tally in seen.values()) > len(seen)


def test_streams_of_lost_replicas_are_continued(seen: dict[str, Tally]) -> None:
    continued = sum(tally.continued for tally in seen.values())
    interrupted = sum(tally.endings[Ending.EVENT] for tally in seen.values())
    assert continued > 0
    assert continued >= LEAST_CONTINUED * (continued + interrupted), [tally.reasons for tally in seen.values()]


def test_nothing_fails_between_the_faults(seen: dict[str, Tally], experiment: Experiment) -> None:
    assert experiment.calm.bad == 0, experiment.calm.reasons


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
