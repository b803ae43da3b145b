"""How far replicas are that start still: noted where the whole cluster sees it, since they answer nobody yet."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from ray.exceptions import RayError

from rayllm.cluster.ray_internals import kv_delete, kv_get, kv_put

logger = logging.getLogger(__name__)

_PREFIX = "rayllm-starting/"
# A download tells of each piece; nobody reads that often.
_PERIOD_S = 1.0


@dataclass(frozen=True)
class Start:
    """A start that goes on.

    `phase` is one of fetch, load and warm_up, `since` when it began, in seconds since 1970; `done` of `size` bytes are
    fetched, 0 where nothing is.
    """

    phase: str
    since: float
    done: int = 0
    size: int = 0


class StartProgress:
    """What one replica notes of its start.

    Args:
        replica_id: Ray Serve's id of it.
    """

    def __init__(self, replica_id: str) -> None:
        self._key = _PREFIX + replica_id
        self._start: Start | None = None
        self._told_at = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is that phase of the start. Nothing is noted once it has ended."""
        self._tell(Start(name, time.time()))
        try:
            yield
        finally:
            self._start = None
            _quietly(lambda: kv_delete(self._key))

    def fetched(self, done: int, size: int) -> None:
        """So many bytes of a download are there. Downloads of adapters, later on, are no part of a start."""
        if self._start and time.monotonic() - self._told_at >= _PERIOD_S:
            self._tell(replace(self._start, done=done, size=size))

    def _tell(self, start: Start) -> None:
        self._start, self._told_at = start, time.monotonic()
        _quietly(lambda: kv_put(self._key, json.dumps(asdict(start))))


def starts(replica_ids: Iterable[str]) -> dict[str, Start]:
    """What those replicas have noted that start now."""
    noted = {replica_id: kv_get(_PREFIX + replica_id) for replica_id in replica_ids}
    return {replica_id: Start(**json.loads(note)) for replica_id, note in noted.items() if note}


def _quietly(call: Callable[[], object]) -> None:
    """Call it; a start does not fail because nobody takes notes."""
    try:
        call()
    except (RayError, RuntimeError, ConnectionError) as error:
        logger.debug("The state of the start is not noted: %r", error)
