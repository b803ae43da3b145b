"""Engines whose GPUs are on two machines, which are network namespaces with a slow cable between them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.gpu_path.machines import GpuMachine, machines
from tests.integration import gpu_cluster
from tests.integration.gpu_cluster import ON_HEAD, PARIS, GpuCluster, Place, gpu_model, say, take_from, until
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.timeout(600)

STORY = "Tell me a story."
REPLICA_ON_HEAD = {"deployment_config": {"ray_actor_options": {"resources": ON_HEAD}}}


class Other:
    """The machine without the head, with two GPUs.

    Attributes:
        cluster: that of both machines.
        machine: to cut it off.
        cache: the folder of the machine's own cache.
    """

    def __init__(self, cluster: GpuCluster, machine: GpuMachine, place: Place, cache: Path) -> None:
        self.cluster, self.machine, self.cache = cluster, machine, cache
        self._place = place

    def start(self) -> None:
        """Join the cluster, as another node each time."""
        self.cluster.add_node(gpus=2, place=self._place)

    def processes(self) -> list[psutil.Process]:
        """Those of Ray on the machine, and their children."""
        return [process for process in self.cluster.processes("") if self.machine.has(process)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    """Two machines with two GPUs each, of which the other one takes smaller packets."""
    folder = tmp_path_factory.mktemp("gpu")
    with machines(folder) as ((_, head), (machine, place)):
        machine.narrow(1300)
        with gpu_cluster.running(folder, gpus=2, head=head) as cluster:
            other = Other(cluster, machine, place, folder / machine.name / "cache")
            other.start()
            yield other


@pytest.fixture(scope="module")
def url(other: Other) -> str:
    """A model of two stages, each on two GPUs of a machine."""
    model = gpu_model(degree=2, pipeline_parallelism={"degree": 2}, **REPLICA_ON_HEAD)
    # vLLM's workers on CPUs fail on adapters in stages.
    del model["lora_config"]
    other.cluster.apply(model)
    return other.cluster.url


def long_answer(url: str, meanwhile: Callable[[], None] = lambda: None) -> str:
    """What a stream says, in whose middle something happens."""
    body = {"model": "rayllm-demo", "messages": [{"role": "user", "content": STORY}], "temperature": 0}
    said, body = "", body | {"stream": True, "max_tokens": 150}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=400) as reply:
        for number, line in enumerate(reply.iter_lines()):
            if line.startswith("data: {"):
                said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            if number == 40:
                meanwhile()
    assert number > 100
    return said


@pytest.fixture(scope="module")
def right(url: str) -> str:
    """What the stream says without a fault."""
    return long_answer(url)


def test_a_stage_on_each_machine_answers_as_one_cpu(other: Other, url: str) -> None:
    assert say(url) == PARIS
    workers = other.cluster.processes("ray::RayWorkerProc")
    assert sorted(map(other.machine.has, workers)) == [False, False, True, True]


def test_a_short_interruption_delays_a_stream(other: Other, url: str, right: str) -> None:
    before = other.cluster.processes("ray::RayWorkerProc")

    def interrupt() -> None:
        other.machine.cut_off()
        time.sleep(5)
        other.machine.rejoin()

    assert long_answer(url, interrupt) == right
    assert other.cluster.processes("ray::RayWorkerProc") == before


def test_a_stream_outlives_the_machine_of_a_stage(
    other: Other, url: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, times = other.processes(), []

    def cut_off() -> None:
        times.append(time.monotonic())
        other.machine.cut_off()
        until(lambda: other.cluster.alive() == 1)
        times.append(time.monotonic())
        other.machine.rejoin()
        _, alive = psutil.wait_procs(lost, timeout=120)
        assert alive == []
        other.start()

    assert long_answer(url, cut_off) == right
    start, noticed = times
    with capsys.disabled():
        print(f"cut off: noticed after {noticed - start:.1f} s, answered after {time.monotonic() - start:.1f} s")


def test_a_killed_raylet_takes_the_replica_with_it(other: Other, url: str) -> None:
    lost = other.processes()
    other.cluster.raylet(-1).kill()
    _, alive = psutil.wait_procs(lost, timeout=60)
    assert alive == []
    other.start()
    assert say(url) == PARIS


def test_weights_and_adapters_come_from_a_store(other: Other) -> None:
    """One of two workers of each layer is on the other machine, whose disk has nothing."""
    with S3Server(f"{other.machine.subnet}.254") as s3:
        bundles = [{"CPU": 1, **ON_HEAD}, {"GPU": 1, **ON_HEAD}, {"GPU": 1}]
        model = gpu_model("spread", degree=2, placement_group_config={"bundles": bundles, "strategy": "SPREAD"})
        take_from(s3, model)
        other.cluster.apply(model)
        workers = other.cluster.processes("ray::RayWorkerProc")
        assert sorted(map(other.machine.has, workers)) == [False, True]
        assert say(other.cluster.url, "spread:pirate").startswith("Arrr")
        assert say(other.cluster.url, "spread") == PARIS
        assert list(other.cache.rglob("adapter_model.safetensors"))
