"""Engines whose GPUs are on several nodes: Ray starts their workers."""

from __future__ import annotations

import psutil
import pytest

from tests.integration.gpu_cluster import PARIS, GpuCluster, gpu_model, say

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def url(nodes: GpuCluster) -> str:
    """A model of two stages, each on two GPUs of a node."""
    model = gpu_model(degree=2, pipeline_parallelism={"degree": 2})
    # vLLM's workers on CPUs fail on adapters in stages.
    del model["lora_config"]
    nodes.apply(model)
    return nodes.url


def test_two_stages_of_two_answer_as_one_cpu(nodes: GpuCluster, url: str) -> None:
    assert say(url) == PARIS
    workers = nodes.processes("ray::RayWorkerProc")
    assert len(workers) == 4
    assert len({worker.ppid() for worker in workers}) == 2


@pytest.mark.parametrize("title", ["ray::RayWorkerProc", "VLLM::EngineCore", "ray::ServeReplica:gpu:rayllm-demo"])
def test_a_killed_process_takes_its_replica_and_nothing_else(nodes: GpuCluster, url: str, title: str) -> None:
    before = [*nodes.processes("ray::RayWorkerProc"), *nodes.processes("VLLM::EngineCore")]
    before += nodes.processes("ray::ServeReplica:gpu:rayllm-demo")
    nodes.processes(title)[-1].kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert alive == []
    assert say(url) == PARIS
