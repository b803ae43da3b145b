"""Ray metrics of a replica: duration of each start-up phase, bytes fetched and adapters loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ray.util.metrics import Counter, Gauge

from rayllm.serving.cluster.state.start_progress import StartProgress
from rayllm.sources import LoggedProgress, Progress

logger = logging.getLogger(__name__)


class ReplicaMetrics:
    """Metrics of one replica; the phases of its start are `fetch`, `load` and `warm_up`.

    Args:
        model_id: the model.
        start_progress: published progress of the start.
    """

    def __init__(self, model_id: str, start_progress: StartProgress) -> None:
        self._model_id = model_id
        self._start_progress = start_progress
        self._seconds = Gauge(
            "rayllm_start_seconds",
            "Seconds that a phase of the last start of a replica took: fetch, load, warm_up.",
            tag_keys=("model_id", "phase"),
        )
        self._durations: dict[str, float] = {}
        self._adapters = Gauge(
            "rayllm_resident_adapters", "Adapters that a replica's engine holds.", tag_keys=("model_id",)
        )
        self._bytes = Counter(
            "rayllm_fetched_bytes", "Bytes of weights and adapters that were fetched.", tag_keys=("model_id",)
        )

    def new_progress(self) -> Progress:
        """A progress observer for one download, which logs and counts bytes."""
        return _CountedProgress(self._bytes, {"model_id": self._model_id}, self._start_progress)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds that each phase of the start took."""
        return dict(self._durations)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as the phase `name`, unless it fails."""
        started_at = time.monotonic()
        with self._start_progress.phase(name):
            yield
        seconds = self._durations[name] = time.monotonic() - started_at
        logger.info("Model `%s`: %s took %.1f s.", self._model_id, name.replace("_", "-"), seconds)

    def export(self, adapters: int) -> None:
        """Set the gauges; Ray drops gauges that are not set periodically.

        Args:
            adapters: number of adapters in the engine.
        """
        for phase, seconds in self._durations.items():
            self._seconds.set(seconds, {"model_id": self._model_id, "phase": phase})
        self._adapters.set(adapters, {"model_id": self._model_id})


class _CountedProgress(LoggedProgress):
    def __init__(self, counter: Counter, tags: dict[str, str], start_progress: StartProgress) -> None:
        super().__init__()
        self._start_progress = start_progress
        self._counter = counter
        self._tags = tags

    def advance(self, count: int) -> None:
        super().advance(count)
        self._start_progress.fetched(self._done, self._size)
        if count > 0:
            self._counter.inc(count, self._tags)
