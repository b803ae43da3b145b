"""Updates on a deployment's replicas, from Ray Serve's request router to a listener in this process."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReplicaUpdate:
    """Ray Serve's report on one replica.

    Attributes:
        capacity: requests that the replica processes at once.
        metadata: what the replica publishes once (`ModelReplica.record_replica_metadata`).
        stats: what the replica publishes periodically (`record_routing_stats`).
    """

    id: str
    capacity: int
    metadata: dict[str, Any]
    stats: dict[str, Any]


Listener = Callable[[list[ReplicaUpdate]], None]

_lock = threading.Lock()
_listeners: dict[tuple[str, str], Listener] = {}
_last: dict[tuple[str, str], list[ReplicaUpdate]] = {}


def subscribe(app: str, deployment: str, listener: Listener) -> None:
    """Call `listener` with a deployment's replicas, now and on every change, from another thread."""
    with _lock:
        _listeners[app, deployment] = listener
        last = _last.get((app, deployment))
    if last is not None:
        listener(last)


def unsubscribe(app: str, deployment: str) -> None:
    with _lock:
        _listeners.pop((app, deployment), None)
        _last.pop((app, deployment), None)


def publish(app: str, deployment: str, updates: list[ReplicaUpdate]) -> None:
    with _lock:
        _last[app, deployment] = updates
        listener = _listeners.get((app, deployment))
    if listener is not None:
        listener(updates)
