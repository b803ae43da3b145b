"""A machine of three that vanishes, or is cut off from the network for a while, under clients that know the answers.

python -m benchmarks.machines             each three times
python -m benchmarks.machines --times 10
python -m benchmarks.machines --proxies   clients ask Ray Serve's proxies, which ask routers
python -m benchmarks.machines --write     also put the table into docs/reliability.md

The machines are network namespaces of this one, so it needs root. Each has a replica of the demo, and there are three
routers. Clients ask those on the machines that stay, as they would through a load balancer. A vanished machine sends no
last packet: its link goes down before its processes are killed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.compare import PAGE, publish
from benchmarks.faults import report
from benchmarks.faults.answers import Ending
from benchmarks.faults.application import APP, Address, arguments, register_adapter, write_key
from benchmarks.faults.clients import Client, right_answers
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.network import Machine, ray_machines
from benchmarks.faults.tally import Tally
from benchmarks.servers import free_port

CLIENTS, MACHINES = 12, 3
CUT_OFF_S = 45.0
_CALM_S = 5.0
_LONGEST_S = 300.0


async def _vanish(lost: Machine) -> None:
    lost.cut_off()
    await asyncio.to_thread(lost.kill)


async def _cut_off(lost: Machine) -> None:
    lost.cut_off()
    await asyncio.sleep(CUT_OFF_S)


LOSSES: Mapping[str, Callable[[Machine], Awaitable[None]]] = {
    "a machine of three vanishes": _vanish,
    f"a machine of three is cut off for {CUT_OFF_S:g} s": _cut_off,
}


class Fleet:
    """The application on three machines.

    Args:
        members: the machines; the last one is lost.
        addresses: of routers on the others.
    """

    def __init__(self, members: Sequence[Machine], addresses: Sequence[Address]) -> None:
        self._members = members
        self._addresses = addresses
        self._tally = Tally()

    async def suffer(self, loss: str, times: int) -> Tally:
        """What clients see of a loss, each time until the machine is back and has its replica again."""
        right, asked = await right_answers(self._addresses[0]), self._addresses
        self._tally, seen = Tally(), Tally()
        clients = [
            Client(asked[number % len(asked)], right, lambda: self._tally, number, 0.0) for number in range(CLIENTS)
        ]
        running = [asyncio.create_task(client.run()) for client in clients]
        try:
            for _ in range(times):
                seen.include(await self._suffer_once(loss))
        finally:
            for client in clients:
                client.stop()
            await asyncio.gather(*running)
        return seen

    async def _suffer_once(self, loss: str) -> Tally:
        await asyncio.sleep(_CALM_S)
        continued, lost = await self._continued(), self._members[-1]
        self._tally = seen = Tally(fault_at=time.monotonic())
        await LOSSES[loss](lost)
        # What Ray has declared dead meanwhile ends by itself or never knew; the machine comes back as a new node.
        await asyncio.to_thread(lost.kill)
        lost.rejoin()
        await asyncio.to_thread(lost.start_ray)
        await self.until_whole()
        seen.whole_s.append(time.monotonic() - seen.fault_at)
        await asyncio.sleep(_CALM_S)
        self._tally = Tally()
        seen.continued = await self._continued() - continued
        print(f"{loss}: {dict(seen.endings)} {dict(seen.reasons)}", file=sys.stderr, flush=True)
        return seen

    async def until_whole(self) -> None:
        """Wait until there are all replicas, and the routers that clients ask know them.

        Raises:
            TimeoutError: that takes too long.
        """
        async with asyncio.timeout(_LONGEST_S):
            while not await self._is_whole():
                await asyncio.sleep(0.5)

    async def _is_whole(self) -> bool:
        if len(await asyncio.to_thread(Cluster().engines)) != len(self._members):
            return False
        return all([await self._knows_all(address) for address in self._addresses])

    async def _knows_all(self, address: Address) -> bool:
        try:
            page = await _page(address)
        except httpx.HTTPError:
            return False
        counts = [int(float(count)) for count in re.findall(r'^rayllm_replicas\{[^}]*"open"[^}]*\} (\S+)', page, re.M)]
        return max(counts, default=0) == len(self._members)

    async def _continued(self) -> int:
        page = await _page(self._addresses[0])
        return sum(int(float(count)) for count in re.findall(r"^rayllm_continuations_total\{[^}]*\} (\S+)", page, re.M))


async def _is_there(address: Address) -> bool:
    try:
        await _page(address)
    except httpx.HTTPError:
        return False
    return True


async def _page(address: Address) -> str:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        reply = await client.get(f"{address.url}/metrics", headers=address.headers)
        return reply.raise_for_status().text


def main() -> int:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, metavar="N", help="each loss so often (default: 3)")
    parser.add_argument("--proxies", action="store_true", help="ask Ray Serve's proxies")
    parser.add_argument("--write", action="store_true", help="also write the table to the docs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ray_machines(MACHINES) as members:
        seen = asyncio.run(_measure(members, Path(folder), options.times, options.proxies))
    publish("machines-proxies" if options.proxies else "machines", report.table(seen), PAGE.with_name("reliability.md"))
    return int(any(tally.endings[Ending.WRONG] or tally.endings[Ending.CUT] for tally in seen.values()))


async def _measure(members: Sequence[Machine], folder: Path, times: int, proxies: bool) -> dict[str, Tally]:
    port, key = free_port(), write_key(folder)
    args = arguments(f"0.0.0.0:{port}", folder, num_replicas=MACHINES, ray_actor_options={"resources": {"machine": 1}})
    [model] = args["llm_configs"]
    model["placement_group_config"] = {"bundles": [{"CPU": 1, "machine": 1}]}
    args["router"]["num_replicas"] = MACHINES
    application = {"name": APP, "route_prefix": "/", "import_path": "rayllm:app", "args": args}
    config: dict[str, Any] = {"applications": [application]}
    if proxies:
        # Each node has one, and routers do not listen.
        del args["router"]["listen"]
        config |= {"proxy_location": "EveryNode", "http_options": {"host": "0.0.0.0", "port": port}}
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    head = members[0]
    await asyncio.to_thread(
        head.run, sys.executable, "-m", "rayllm", "apply", str(file), "--address", f"{head.ip}:6379"
    )
    # Ray decides where routers run: a machine may have two, and another one none.
    addresses = [Address(f"http://{member.ip}:{port}", key) for member in members[:-1]]
    addresses = [address for address in addresses if await _is_there(address)]
    if not addresses:
        raise SystemExit("All routers are on the machine that is to be lost. Try again.")
    fleet = Fleet(members, addresses)
    await fleet.until_whole()
    register_adapter(addresses[0])
    return {loss: await fleet.suffer(loss, times) for loss in LOSSES}


if __name__ == "__main__":
    sys.exit(main())
