"""Engines whose GPUs are on several nodes: Ray starts their workers."""

from __future__ import annotations

import time

import psutil
import pytest

from tests.integration.gpu_cluster import PARIS, GpuCluster, gpu_model, say, take_from, until
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def url(nodes: GpuCluster) -> str:
    """A model of two stages, each on two GPUs of a node."""
    model = gpu_model(degree=2, pipeline_parallelism={"degree": 2})
    # vLLM's workers on CPUs fail on adapters in stages.
    del model["lora_config"]
    nodes.apply(model)
    return nodes.url


def replica(nodes: GpuCluster) -> list[psutil.Process]:
    """The processes of the only replica."""
    titles = "ray::RayWorkerProc", "VLLM::EngineCore", "ray::ServeReplica:gpu:rayllm-demo"
    return [process for title in titles for process in nodes.processes(title)]


def test_two_stages_of_two_answer_as_one_cpu(nodes: GpuCluster, url: str) -> None:
    assert say(url) == PARIS
    workers = nodes.processes("ray::RayWorkerProc")
    assert len(workers) == 4
    assert len({worker.ppid() for worker in workers}) == 2


@pytest.mark.parametrize("title", ["ray::RayWorkerProc", "VLLM::EngineCore", "ray::ServeReplica:gpu:rayllm-demo"])
def test_a_killed_process_takes_its_replica_and_nothing_else(nodes: GpuCluster, url: str, title: str) -> None:
    before = replica(nodes)
    nodes.processes(title)[-1].kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert alive == []
    assert say(url) == PARIS


def test_a_killed_raylet_takes_the_replica_with_it(nodes: GpuCluster, url: str) -> None:
    before = replica(nodes)
    nodes.raylet(-1).kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert alive == []
    nodes.add_node(gpus=2)
    assert say(url) == PARIS


def test_a_stopped_raylet_is_replaced(nodes: GpuCluster, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, count, start = replica(nodes), nodes.alive(), time.monotonic()
    raylet = nodes.raylet(-1)
    raylet.suspend()
    try:
        until(lambda: nodes.alive() < count)
        noticed = time.monotonic()
        nodes.add_node(gpus=2)
        assert say(url) == PARIS
        ended = time.monotonic()
    finally:
        # Until then, its workers stay.
        raylet.resume()
    with capsys.disabled():
        print(f"raylet stopped: noticed after {noticed - start:.1f} s, answered after {ended - start:.1f} s")
    _, alive = psutil.wait_procs(before, timeout=60)
    assert alive == []


def test_weights_and_adapters_are_fetched_for_workers_on_another_node(nodes: GpuCluster) -> None:
    """The replica's own node has no GPU."""
    with S3Server() as s3:
        model = gpu_model("spread", placement_group_config={"bundle_per_worker": {"GPU": 1}, "strategy": "SPREAD"})
        take_from(s3, model)
        nodes.apply(model)
        [replica], [worker] = nodes.processes("ray::ServeReplica:gpu:spread"), nodes.processes("ray::RayWorkerProc")
        assert replica.ppid() != worker.ppid()
        assert say(nodes.url, "spread:pirate").startswith("Arrr")
        assert say(nodes.url, "spread") == PARIS
