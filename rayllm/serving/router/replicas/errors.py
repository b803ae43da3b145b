"""Why a replica did not answer a request. Clients never see these: the dispatcher tries another replica."""

from __future__ import annotations


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
    """The replica died or failed on the request; the client has not seen a byte of a reply."""
