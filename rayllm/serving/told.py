"""Which replicas a deployment has, as Ray Serve tells this process; kept here for who wants to know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Told:
    """What is told of one replica.

    `metadata` is what it says of itself once (`ModelReplica.record_replica_metadata`), `stats` what it says again and
    again (`record_routing_stats`).
    """

    id: str
    capacity: int
    metadata: dict[str, Any]
    stats: dict[str, Any]


Heard = Callable[[list[Told]], None]

_lock = threading.Lock()
_listeners: dict[tuple[str, str], Heard] = {}
_last: dict[tuple[str, str], list[Told]] = {}


def watch(app: str, deployment: str, heard: Heard) -> None:
    """Have `heard` told of a deployment's replicas, now and whenever they change. It is called from another thread."""
    with _lock:
        _listeners[app, deployment] = heard
        last = _last.get((app, deployment))
    if last is not None:
        heard(last)


def unwatch(app: str, deployment: str) -> None:
    """Be told no more."""
    with _lock:
        _listeners.pop((app, deployment), None)


def tell(app: str, deployment: str, told: list[Told]) -> None:
    """These are the deployment's replicas now."""
    with _lock:
        _last[app, deployment] = told
        heard = _listeners.get((app, deployment))
    if heard is not None:
        heard(told)
