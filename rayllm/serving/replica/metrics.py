"""Metrics of a replica: duration of each start-up phase, bytes fetched, adapters loaded, and the node's cache."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from rayllm.serving.cluster.metrics import Metrics, Series
from rayllm.serving.cluster.state.start_progress import StartProgress
from rayllm.sources import LoggedProgress, Progress

logger = logging.getLogger(__name__)

START = Series(
    "rayllm_start_seconds",
    "gauge",
    ("model", "phase"),
    "Seconds that each phase of the replica's start took: fetch, load, warm_up.",
)
ADAPTERS = Series("rayllm_resident_adapters", "gauge", ("model",), "Adapters that are loaded in the replica's engine.")
FETCHED = Series(
    "rayllm_fetched_bytes_total", "counter", ("model",), "Bytes of weights and adapters that the replica has fetched."
)
CACHE = Series("rayllm_cache_bytes", "gauge", ("model",), "Bytes in the cache of weights of the replica's node.")
SERIES = (START, ADAPTERS, FETCHED, CACHE)
"""All series of a replica. On the page, every one has the label `replica` besides."""


class ReplicaMetrics:
    """Metrics of one replica; the phases of its start are `fetch`, `load` and `warm_up`."""

    def __init__(self, model_id: str, start_progress: StartProgress, registry: CollectorRegistry = REGISTRY) -> None:
        self._model_id = model_id
        self._start_progress = start_progress
        self._metrics = Metrics(registry, SERIES)
        self.phases: dict[str, float] = {}
        """Seconds that each phase of the start took."""

    def new_progress(self) -> Progress:
        """A progress observer for one download, which logs and counts bytes."""
        return _CountedProgress(self._start_progress, partial(self._metrics.count, FETCHED, (self._model_id,)))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as the phase `name`, unless the block fails."""
        started_at = time.monotonic()
        with self._start_progress.phase(name):
            yield
        seconds = self.phases[name] = time.monotonic() - started_at
        logger.info("Model `%s`: %s took %.1f s.", self._model_id, name.replace("_", "-"), seconds)

    def export(self, adapters: int, cache_bytes: int) -> None:
        """Set the gauges; Ray drops gauges that are not set periodically."""
        for phase, seconds in self.phases.items():
            self._metrics.set(START, (self._model_id, phase), seconds)
        self._metrics.set(ADAPTERS, (self._model_id,), adapters)
        self._metrics.set(CACHE, (self._model_id,), cache_bytes)


class _CountedProgress(LoggedProgress):
    def __init__(self, start_progress: StartProgress, count: Callable[[int], None]) -> None:
        super().__init__()
        self._start_progress = start_progress
        self._count = count

    def advance(self, count: int) -> None:
        super().advance(count)
        self._start_progress.fetched(self._done, self._size)
        # Negative when damaged bytes were discarded; those were fetched all the same.
        if count > 0:
            self._count(count)
