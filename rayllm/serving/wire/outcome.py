"""How an attempt to have a replica answer ended, and what a replica's error means for the client."""

import json
import logging
from collections.abc import Container
from contextlib import suppress
from enum import Enum

from rayllm.core.error_shapes import error_event
from rayllm.core.errors import ADAPTER_UNAVAILABLE, ConstraintNotCheckedError, EngineError, UnavailableError
from rayllm.core.headers import DRAINING, FULL, LOST, PREEMPTED

logger = logging.getLogger(__name__)


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


def check_refusal(model_id: str, status: int, content_type: str, body: bytes) -> None:
    """Accept an error of a replica that the client gets unchanged.

    Raises UnavailableError if the replica cannot answer now, and EngineError if the body is no error object.
    """
    if status == 503:
        raise _unavailable(model_id, body)
    if not content_type.startswith("application/json"):
        logger.error("A replica of `%s` answered %d: %s", model_id, status, body[:500])
        raise EngineError("The model's replica failed on this request; its log says why.")


def _unavailable(model_id: str, body: bytes) -> UnavailableError:
    """The error for a 503: the replica's own if it says what is unavailable, else that the model has no free slot."""
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        if error["code"] == ADAPTER_UNAVAILABLE:
            return UnavailableError(str(error["message"]), "model", ADAPTER_UNAVAILABLE, 10)
        if error["code"] == ConstraintNotCheckedError.default_code:
            return ConstraintNotCheckedError(str(error["message"]))
    return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")


def interrupted() -> EngineError:
    """The error for a reply that no replica can continue."""
    return EngineError("The model's replica broke off in the middle of its answer.")


def interrupted_event(path: str) -> bytes:
    """The last event of a stream that no replica can continue."""
    return error_event(interrupted(), path)
