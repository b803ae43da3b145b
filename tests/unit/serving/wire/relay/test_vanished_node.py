"""A node that is gone without a last packet: in a network namespace whose link goes down."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import aiohttp
import pytest

from benchmarks.faults.network import Machine, network
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome
from rayllm.serving.wire.relay.transport import HttpTransport

PORT = 8000
# Answers requests for `/whole`, and begins replies to others.
REPLICA = """
import asyncio, sys

async def serve(reader, writer):
    while True:
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        is_whole = b" /whole " in head
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n0" % (1 if is_whole else 2))

async def main():
    await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root, and `ip`")


@pytest.fixture
def node() -> Iterator[Machine]:
    """A node on which a replica listens."""
    with ExitStack() as stack:
        try:
            [machine] = stack.enter_context(network(1))
        except subprocess.CalledProcessError as error:
            if "not permitted" in error.stderr:
                pytest.skip("network namespaces are not permitted here")
            raise
        command = ["ip", "netns", "exec", machine.name, sys.executable, "-c", REPLICA, machine.ip, str(PORT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stdout.readline() == b"listening\n"
            yield machine
            process.kill()


async def test_replies_and_requests_under_way_are_lost_within_seconds(node: Machine) -> None:
    metadata = {"address": f"http://{node.ip}:{PORT}", "key": "k", "socket": "", "node_id": "far"}
    replica = Replica(ReplicaUpdate("r", 1, metadata, {}), False, lambda: None, lambda _: None)
    transport = HttpTransport(connect_timeout_s=5)

    async def ask() -> None:
        async with transport.send(replica, "POST", "/whole", b"", {}) as reply:
            assert await reply.content.read() == b"0"

    try:
        async with transport.send(replica, "POST", "/begun", b"", {}) as begun:
            assert await begun.content.readany() == b"0"
            # Leaves a connection, which the next request takes.
            await ask()
            node.cut_off()
            async with asyncio.timeout(20):
                outcomes = await asyncio.gather(begun.content.readany(), ask(), return_exceptions=True)
    finally:
        await transport.close()
    assert isinstance(outcomes[0], aiohttp.ClientError)
    assert isinstance(outcomes[1], NotAnsweredError)
    assert outcomes[1].outcome is Outcome.LOST
