"""Why a replica did not answer a request. Clients never see these: the dispatcher tries another replica."""

from __future__ import annotations

from collections.abc import Container

from rayllm.core.headers import DRAINING, FULL, LOST, PUT_BACK


class ReplicaError(Exception):
    """The replica did not answer; see the subclasses."""


class ReplicaFullError(ReplicaError):
    """The replica has no free slot and did nothing."""


class ReplicaPutBackError(ReplicaFullError):
    """The replica gave the request's slot to one of a higher class; the client has not seen a byte of a reply."""


class ReplicaUnreachableError(ReplicaError):
    """The replica cannot be reached; nothing was sent."""


class ReplicaDrainingError(ReplicaUnreachableError):
    """The replica takes no more requests and did nothing."""


class ReplicaLostError(ReplicaError):
    """The replica or its engine died with the request. The client has not seen a byte of a reply, or another replica
    can go on with it.
    """


class ReplicaMovedError(ReplicaError):
    """The replica ends before the reply does; another one can go on with it."""


class ReplicaFailedError(ReplicaError):
    """The replica failed on the request, and lives; the client has not seen a byte of a reply."""


class SuspectError(Exception):
    """Replicas died of this request, as far as can be told: each had it, and nothing else was in all of them."""


_BY_HEADER = {
    PUT_BACK: ReplicaPutBackError,
    FULL: ReplicaFullError,
    DRAINING: ReplicaDrainingError,
    LOST: ReplicaLostError,
}


def check_turned_away(reply_headers: Container[str]) -> None:
    """Raise what the headers of a replica's reply say, if the replica has turned the request away."""
    for name, error in _BY_HEADER.items():
        if name in reply_headers:
            raise error
