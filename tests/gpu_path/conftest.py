"""More of the path that engines take on GPUs than `make test` has time for. Each module has a cluster of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import gpu_cluster
from tests.integration.gpu_cluster import GpuCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCluster]:
    """One node with eight GPUs."""
    with gpu_cluster.running(tmp_path_factory.mktemp("gpu")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCluster]:
    """Three nodes: the head, and two with two GPUs each."""
    with gpu_cluster.running(tmp_path_factory.mktemp("gpu"), gpus=0) as cluster:
        for _ in range(2):
            cluster.add_node(gpus=2)
        yield cluster
