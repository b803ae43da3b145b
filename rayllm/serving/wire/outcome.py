"""How an attempt to have a replica answer ended."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum

from rayllm.core.headers import DRAINING, FULL, LOST, PREEMPTED


class Outcome(Enum):
    """How an attempt to have a replica answer ended. After all but the first two, another replica may answer."""

    ANSWERED = "the client has the whole reply"
    ERROR = "the client has an error of the replica, or a reply that broke off"
    FULL = "the replica has no free slot and did nothing"
    PREEMPTED = "the replica gave the request's slot to a request of a higher class; the client has got nothing"
    UNREACHABLE = "the replica cannot be reached; nothing was sent"
    DRAINING = "the replica takes no more requests and did nothing"
    LOST = "the replica or its engine died; the client has got nothing, or a stream that another replica can continue"
    MOVED = "the replica ends before its stream; another replica can continue the stream"
    FAILED = "the replica lives, but failed before the client got anything"

    @property
    def is_final(self) -> bool:
        """Whether the client has got its reply, so that no other replica is asked."""
        return self in (Outcome.ANSWERED, Outcome.ERROR)

    @property
    def was_full(self) -> bool:
        """Whether the replica had no slot for the request, which therefore has only waited there."""
        return self in (Outcome.FULL, Outcome.PREEMPTED)


class NotAnsweredError(Exception):
    """A replica did not answer a request, as `outcome` says."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


_BY_HEADER = {
    PREEMPTED: Outcome.PREEMPTED,
    FULL: Outcome.FULL,
    DRAINING: Outcome.DRAINING,
    LOST: Outcome.LOST,
}


def check_turned_away(reply_headers: Container[str]) -> None:
    """Raise NotAnsweredError if the headers of a replica's reply say that the replica has turned the request away."""
    for name, outcome in _BY_HEADER.items():
        if name in reply_headers:
            raise NotAnsweredError(outcome)
