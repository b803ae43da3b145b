"""Failure reports reach their request, and no other."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from rayllm.engine.guided.failure_reports import Failures, report


@pytest.fixture
async def failures() -> AsyncIterator[Failures]:
    found = Failures()
    await found.listen()
    yield found
    await found.close()


async def test_a_report_is_known_when_the_worker_goes_on(failures: Failures) -> None:
    ticket, other = failures.ticket(), failures.ticket()
    await asyncio.gather(*(asyncio.to_thread(report, failures.address, ticket.id, "it ran") for _ in range(3)))
    assert ticket.fault == "it ran"
    assert other.fault is None


async def test_a_request_that_is_over_is_forgotten(failures: Failures) -> None:
    ticket = failures.ticket()
    name = ticket.id
    del ticket
    gc.collect()
    await asyncio.to_thread(report, failures.address, name, "late")
    assert not failures._tickets


async def test_a_replica_that_cannot_be_reached_does_not_hurt_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    await asyncio.to_thread(report, "127.0.0.1:1", "id", "it ran")
    assert "did not get the report" in caplog.text


@pytest.mark.parametrize("line", [b"\n", b"GET / HTTP/1.1\r\n", b"[]\n", b'{"id": 1}\n', b"x" * 100_000])
async def test_noise_on_the_port_is_ignored(failures: Failures, line: bytes) -> None:
    ticket = failures.ticket()
    host, _, port = failures.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(line)
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await asyncio.to_thread(report, failures.address, ticket.id, "it ran")
    assert ticket.fault == "it ran"
