"""The path that engines take on GPUs, from the placement group to the reply, with fake GPUs.

`make test-gpu-path` runs more of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.integration import gpu_cluster
from tests.integration.gpu_cluster import PARIS, GpuCluster, copy_adapters, gpu_model, say, until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCluster]:
    with gpu_cluster.running(tmp_path_factory.mktemp("gpu")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def url(cluster: GpuCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A service whose only model is divided over two GPUs, with a folder of adapters of which some are broken."""
    folder = tmp_path_factory.mktemp("adapters")
    copy_adapters(folder)
    cluster.apply(gpu_model(degree=2, lora_config={"dynamic_lora_loading_path": str(folder)}))
    return cluster.url


def test_a_model_on_two_gpus_answers_as_on_one_cpu(url: str) -> None:
    assert say(url) == PARIS


def test_each_worker_has_a_gpu_of_its_own(cluster: GpuCluster, url: str) -> None:
    workers = cluster.processes("VLLM::Worker")
    assert len(workers) == 2
    visible = {worker.environ()["CUDA_VISIBLE_DEVICES"] for worker in workers}
    assert len(visible) == 1
    assert len(set(visible.pop().split(","))) == 2
    assert workers[0].environ()["TRITON_CACHE_DIR"].startswith(cluster.environment()["RAYLLM_CACHE_DIR"])


def test_a_router_sees_no_gpu(cluster: GpuCluster, url: str) -> None:
    [router] = cluster.processes("ray::ServeReplica:gpu:Router")
    assert router.environ()["CUDA_VISIBLE_DEVICES"] == ""


def test_a_broken_adapter_leaves_the_workers_in_step(url: str) -> None:
    """A reply that one worker leaves unread would be taken for that to the next call."""
    for _ in range(2):
        refused = httpx.post(f"{url}/v1/completions", json={"model": "rayllm-demo:broken", "prompt": "a"}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "adapter_broken")
        assert say(url, "rayllm-demo:pirate").startswith("Arrr")
        assert say(url) == PARIS


def test_a_killed_worker_takes_its_replica_and_nothing_else(cluster: GpuCluster, url: str) -> None:
    kill_one(cluster, "VLLM::Worker")
    assert say(url) == PARIS


def test_nothing_is_left_of_a_model_that_goes(cluster: GpuCluster, url: str) -> None:
    assert say(url) == PARIS
    gone = [*cluster.processes("ray::ServeReplica:gpu:rayllm-demo"), *cluster.engine_processes()]
    cluster.delete()
    _, alive = psutil.wait_procs(gone, timeout=60)
    assert alive == []
    until(lambda: not cluster.groups())


def kill_one(cluster: GpuCluster, title: str) -> None:
    """Kill one process of a replica; the others end with it."""
    before = [*cluster.processes("ray::ServeReplica:gpu:rayllm-demo"), *cluster.engine_processes()]
    cluster.processes(title)[-1].kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert alive == []
