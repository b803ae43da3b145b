"""What a replica tells of itself as metrics of Ray: how long each phase of its start took, and what it fetched."""

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
    """The metrics of one replica; the phases of its start are `fetch`, `load` and `warm_up`.

    Args:
        model_id: the model.
        notes: of the replica's start.
    """

    def __init__(self, model_id: str, notes: StartProgress) -> None:
        self._model_id = model_id
        self._notes = notes
        self._seconds = Gauge(
            "rayllm_start_seconds",
            "Seconds that a phase of the last start of a replica took: fetch, load, warm_up.",
            tag_keys=("model_id", "phase"),
        )
        self._took: dict[str, float] = {}
        self._adapters = Gauge(
            "rayllm_resident_adapters", "Adapters that a replica's engine holds.", tag_keys=("model_id",)
        )
        self._bytes = Counter(
            "rayllm_fetched_bytes", "Bytes of weights and adapters that were fetched.", tag_keys=("model_id",)
        )

    def new_progress(self) -> Progress:
        """An observer of one download: log lines, and the counter of bytes."""
        return _CountedProgress(self._bytes, {"model_id": self._model_id}, self._notes)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds that each phase of the start took."""
        return dict(self._took)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as the phase `name`; nothing is told of a block that fails."""
        began = time.monotonic()
        with self._notes.phase(name):
            yield
        took = self._took[name] = time.monotonic() - began
        logger.info("Model `%s`: %s took %.1f s.", self._model_id, name.replace("_", "-"), took)

    def tell(self, adapters: int) -> None:
        """Set the gauges: Ray forgets those that are not set again and again.

        Args:
            adapters: how many the engine holds.
        """
        for phase, took in self._took.items():
            self._seconds.set(took, {"model_id": self._model_id, "phase": phase})
        self._adapters.set(adapters, {"model_id": self._model_id})


class _CountedProgress(LoggedProgress):
    def __init__(self, counter: Counter, tags: dict[str, str], notes: StartProgress) -> None:
        super().__init__()
        self._notes = notes
        self._counter = counter
        self._tags = tags

    def advance(self, count: int) -> None:
        super().advance(count)
        self._notes.fetched(self._done, self._size)
        if count > 0:
            self._counter.inc(count, self._tags)
