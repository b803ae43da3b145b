"""What clients see of faults: two replicas of the demo, two routers, twenty clients with known answers.

python -m benchmarks.faults             print the table: each fault three times
python -m benchmarks.faults --write     also put it into docs/reliability.md
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import psutil
import ray
import yaml
from ray import serve

from benchmarks.compare import PAGE, publish, read_options
from benchmarks.processes import engines_of, titled
from benchmarks.servers import DEMO, free_port
from rayllm import build_app

APP = "faults"
MODEL = "steady"
REPLICAS, ROUTERS, CLIENTS = 2, 2, 20
TIMES = 3
_CAPITALS = {"France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid"}
_LONGEST_S = 400.0


class Ending(StrEnum):
    """How a request ended, as its client saw it."""

    RIGHT = "right"
    WRONG = "wrong answer"
    EVENT = "error event"
    REFUSED = "refused"
    CUT = "cut"
    LOST = "lost"


@dataclass
class Tally:
    """How requests ended, and when the last one ended badly: seconds after the fault, 0 where none did."""

    endings: Counter[Ending] = field(default_factory=Counter)
    fault_at: float = float("inf")
    healed_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, ending: Ending, reason: str = "") -> None:
        """Count a request."""
        self.endings[ending] += 1
        if ending is not Ending.RIGHT:
            self.reasons[reason] += 1
            self.healed_s = max(self.healed_s, time.monotonic() - self.fault_at)

    @property
    def bad(self) -> int:
        """Requests that did not end as they should."""
        return self.endings.total() - self.endings[Ending.RIGHT]


class Client:
    """Asks one question after another: streams and whole replies in turn, on new connections and old ones.

    Args:
        url: the service's.
        tally: takes in how each request ended.
        number: of the client.
        pause_s: seconds between two questions.
    """

    def __init__(self, url: str, tally: Callable[[], Tally], number: int, pause_s: float) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._tally = tally
        self._turns = itertools.count(number)
        self._number = number
        self._pause_s = pause_s
        self._is_stopped = False

    def stop(self) -> None:
        """Ask no more."""
        self._is_stopped = True

    async def run(self) -> None:
        """Ask until told to stop."""
        connector = aiohttp.TCPConnector(force_close=self._number % 4 == 0)
        timeout = aiohttp.ClientTimeout(total=90)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while not self._is_stopped:
                await self._ask(session, next(self._turns))
                await asyncio.sleep(self._pause_s)

    async def _ask(self, session: aiohttp.ClientSession, turn: int) -> None:
        country, capital = list(_CAPITALS.items())[turn % len(_CAPITALS)]
        question = {"role": "user", "content": f"What is the capital of {country}?"}
        body = {"model": MODEL, "messages": [question], "temperature": 0, "stream": bool(turn % 3)}
        has_begun = False
        try:
            async with session.post(self._url, json=body) as reply:
                if reply.status != 200:
                    self._tally().add(Ending.REFUSED, f"{reply.status} {(await reply.text())[:200]}")
                    return
                has_begun = True
                text = await reply.text()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            self._tally().add(Ending.CUT if has_begun else Ending.LOST, repr(error)[:200])
            # A server that is not there refuses at once: asking again without a pause would only count that.
            await asyncio.sleep(0.1)
            return
        expected = f"The capital of {country} is {capital}."
        self._tally().add(*(_ending_of_stream(text, expected) if body["stream"] else _ending(text, expected)))


def _ending(text: str, expected: str) -> tuple[Ending, str]:
    said = json.loads(text)["choices"][0]["message"]["content"]
    return (Ending.RIGHT, "") if said == expected else (Ending.WRONG, said)


def _ending_of_stream(text: str, expected: str) -> tuple[Ending, str]:
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: ")]
    said = ""
    for event in events:
        if event == "[DONE]":
            return (Ending.RIGHT, "") if said == expected else (Ending.WRONG, said)
        if "error" in (chunk := json.loads(event)):
            return Ending.EVENT, event[:200]
        said += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    return Ending.CUT, f"a stream without an end: {said}"


class Cluster:
    """The processes of the running application."""

    def replicas(self) -> list[psutil.Process]:
        """The model's."""
        return titled(f"ray::ServeReplica:{APP}:{MODEL}")

    def routers(self) -> list[psutil.Process]:
        """The router's."""
        return titled(f"ray::ServeReplica:{APP}:Router")

    def controller(self) -> psutil.Process:
        """Ray Serve's controller."""
        [found] = titled("ray::ServeController")
        return found

    def processes(self) -> set[int]:
        """Process ids of everything that a fault can end, but the engines."""
        found = (*self.replicas(), *self.routers(), *titled("ray::ServeController"))
        return {process.pid for process in found}

    def engine(self, replica: psutil.Process) -> psutil.Process:
        """The engine of a replica."""
        [engine] = engines_of([replica])
        return engine

    def is_whole(self) -> bool:
        """Whether every replica and every router is up, and the controller knows it."""
        try:
            application = serve.status().applications[APP]
        except Exception:
            return False
        running = {name: one.replica_states.get("RUNNING", 0) for name, one in application.deployments.items()}
        return running == {"Router": ROUTERS, MODEL: REPLICAS}


def _kill_replica(cluster: Cluster) -> None:
    cluster.replicas()[0].kill()


def _kill_engine(cluster: Cluster) -> None:
    cluster.engine(cluster.replicas()[0]).kill()


def _hang_engine(cluster: Cluster) -> None:
    cluster.engine(cluster.replicas()[0]).suspend()


def _terminate_replica(cluster: Cluster) -> None:
    cluster.replicas()[0].send_signal(signal.SIGTERM)


def _kill_router(cluster: Cluster) -> None:
    cluster.routers()[0].kill()


def _kill_routers(cluster: Cluster) -> None:
    for router in cluster.routers():
        router.kill()


def _kill_controller(cluster: Cluster) -> None:
    cluster.controller().kill()


FAULTS: dict[str, Callable[[Cluster], None]] = {
    "kill -9 of a replica": _kill_replica,
    "kill -9 of an engine": _kill_engine,
    "SIGSTOP of an engine": _hang_engine,
    "SIGTERM to a replica": _terminate_replica,
    "kill -9 of a router": _kill_router,
    "kill -9 of all routers": _kill_routers,
    "kill -9 of the controller": _kill_controller,
}


class Service:
    """The application under load.

    Args:
        url: its address.
        pause_s: seconds that each client waits between two requests.
        calm_s: seconds of load before each fault, and after all is whole again.
    """

    def __init__(self, url: str, pause_s: float = 0.0, calm_s: float = 3.0) -> None:
        self.cluster = Cluster()
        self._calm_s = calm_s
        self._tally = Tally()
        self._clients = [Client(url, lambda: self._tally, number, pause_s) for number in range(CLIENTS)]

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Have all clients ask while the block runs."""
        running = [asyncio.create_task(client.run()) for client in self._clients]
        try:
            yield
        finally:
            for client in self._clients:
                client.stop()
            await asyncio.gather(*running)

    async def suffer(self, fault: str) -> Tally:
        """What the clients see of a fault, until everything is as it was."""
        await asyncio.sleep(self._calm_s)
        calm, self._tally = self._tally, Tally(fault_at=time.monotonic())
        if calm.bad:
            raise RuntimeError(f"requests failed before the fault: {calm.reasons}")
        processes = self.cluster.processes()
        FAULTS[fault](self.cluster)
        await self._until_whole(processes)
        await asyncio.sleep(self._calm_s)
        seen, self._tally = self._tally, Tally()
        return seen

    async def _until_whole(self, before: set[int]) -> None:
        """Wait until what was lost is replaced. Serve notices some faults only after seconds."""
        end = time.monotonic() + _LONGEST_S
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            now = self.cluster.processes()
            if now != before and len(now) == len(before) and await asyncio.to_thread(self.cluster.is_whole):
                return
        raise TimeoutError(f"the application is not whole again within {_LONGEST_S:g} s")


def application(port: int, **options: Any) -> Any:
    """Two replicas of the demo behind two routers.

    Args:
        port: the routers'.
        options: more keys of the model's `deployment_config`.
    """
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = (DEMO.parent / demo["model_loading_config"]["model_source"]).resolve()
    demo["model_loading_config"] = {"model_id": MODEL, "model_source": str(weights)}
    demo["deployment_config"] = {"num_replicas": REPLICAS, "health_check_period_s": 2, **options}
    del demo["lora_config"]
    return build_app({"llm_configs": [demo], "router": {"num_replicas": ROUTERS, "listen": f"127.0.0.1:{port}"}})


async def _measure(url: str, times: int) -> dict[str, Tally]:
    service = Service(url)
    seen = {}
    async with service.load():
        for fault in FAULTS:
            total = seen[fault] = Tally()
            for _ in range(times):
                once = await service.suffer(fault)
                total.endings += once.endings
                total.reasons += once.reasons
                total.healed_s = max(total.healed_s, once.healed_s)
            print(fault, dict(total.endings), f"{total.healed_s:.1f} s", dict(total.reasons.most_common(4)), flush=True)
    return seen


def _table(seen: dict[str, Tally]) -> str:
    head = ["fault", *(str(ending) for ending in Ending), "last failure after"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for fault, tally in seen.items():
        counts = [f"{tally.endings[ending]:,}" for ending in Ending]
        lines.append("| " + " | ".join([fault, *counts, f"{tally.healed_s:.1f} s" if tally.bad else "–"]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print or write the table."""
    read_options(__doc__)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, namespace="serve")
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
    serve.run(application(port), name=APP, route_prefix="/")
    seen = asyncio.run(_measure(f"http://127.0.0.1:{port}", TIMES))
    serve.shutdown()
    ray.shutdown()
    publish("faults", _table(seen), PAGE.with_name("reliability.md"))


if __name__ == "__main__":
    main()
