from __future__ import annotations

from prometheus_client import CollectorRegistry

from rayllm.serving.cluster.state.start_progress import StartProgress
from rayllm.serving.replica.metrics import ReplicaMetrics


def test_bytes_that_are_fetched_again_count_again() -> None:
    registry = CollectorRegistry()
    progress = ReplicaMetrics("m", StartProgress("replica"), registry).new_progress()
    progress.start("s3://models/m", 100)
    progress.advance(100)
    progress.advance(-60)
    progress.advance(60)
    progress.finish()
    assert registry.get_sample_value("rayllm_fetched_bytes_total", {"model": "m"}) == 160
