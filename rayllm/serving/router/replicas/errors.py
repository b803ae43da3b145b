"""Why a replica did not answer a request. Clients never see these: the dispatcher tries another replica."""

from __future__ import annotations


class ReplicaFullError(Exception):
    """The replica has no free slot and did nothing."""


class ReplicaUnreachableError(Exception):
    """The replica cannot be reached; nothing was sent."""


class ReplicaDrainingError(ReplicaUnreachableError):
    """The replica takes no more requests and did nothing."""


class ReplicaLostError(Exception):
    """The replica died or failed on the request; the client has not seen a byte of a reply."""
