"""Progress of starting replicas, which answer no calls yet, in Ray's key-value store."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from ray.exceptions import RayError

from rayllm.cluster.ray_internals import kv_delete, kv_get, kv_keys, kv_put

_PREFIX = "rayllm-starting/"
# Seconds between writes; downloads report every chunk.
_PERIOD_S = 1.0
# A start must not fail because its progress cannot be published.
_UNPUBLISHED = (RayError, RuntimeError, ConnectionError)


@dataclass(frozen=True)
class Start:
    """Progress of a replica's start.

    Attributes:
        phase: fetch, load or warm_up.
        since: start of the phase, in seconds since the epoch.
        done: bytes fetched.
        size: bytes to fetch; 0 if nothing is fetched.
    """

    phase: str
    since: float
    done: int = 0
    size: int = 0
    application: str = ""
    model_id: str = ""

    @property
    def elapsed_s(self) -> float:
        return time.time() - self.since

    @property
    def share(self) -> str:
        """Share fetched, as the end of a sentence; empty if nothing is fetched."""
        return f", {self.done / self.size:.0%} of {self.size / 1e9:.1f} GB" if self.size else ""

    def __str__(self) -> str:
        return f"{self.phase.replace('_', '-')} since {self.elapsed_s:.0f} s{self.share}"


class StartProgress:
    """Publishes the progress of one replica's start."""

    def __init__(self, replica_id: str, application: str = "", model_id: str = "") -> None:
        self._key = _PREFIX + replica_id
        self._application, self._model_id = application, model_id
        self._start: Start | None = None
        self._published_at = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Publish a phase of the start for the duration of the block."""
        self._publish(Start(name, time.time(), application=self._application, model_id=self._model_id))
        try:
            yield
        finally:
            self._start = None
            with suppress(*_UNPUBLISHED):
                kv_delete(self._key)

    def fetched(self, done: int, size: int) -> None:
        """Publish the progress of a download. Later downloads, of adapters, are not part of the start."""
        if self._start and time.monotonic() - self._published_at >= _PERIOD_S:
            self._publish(replace(self._start, done=done, size=size))

    def _publish(self, start: Start) -> None:
        self._start, self._published_at = start, time.monotonic()
        with suppress(*_UNPUBLISHED):
            kv_put(self._key, json.dumps(asdict(start)))


def starts(replica_ids: Iterable[str]) -> dict[str, Start]:
    """Progress of the replicas among `replica_ids` that are starting."""
    values = {replica_id: kv_get(_PREFIX + replica_id) for replica_id in replica_ids}
    return {replica_id: Start(**json.loads(value)) for replica_id, value in values.items() if value}


def starts_of(application: str) -> dict[str, Start]:
    """Progress of one starting replica of each model of an application that has any."""
    values = (kv_get(key) for key in kv_keys(_PREFIX))
    found = [Start(**json.loads(value)) for value in values if value]
    return {start.model_id: start for start in found if start.application == application}
