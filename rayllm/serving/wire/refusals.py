"""What a replica's error means for the client."""

from __future__ import annotations

import json
import logging

from rayllm.core.error_shapes import error_event
from rayllm.core.errors import ADAPTER_UNAVAILABLE, ConstraintNotCheckedError, EngineError, UnavailableError

logger = logging.getLogger(__name__)


def check_refusal(model_id: str, status: int, content_type: str, body: bytes) -> None:
    """Accept an error of a replica that the client gets as it is.

    Raises:
        UnavailableError: the replica cannot answer now.
        EngineError: the body is no error object.
    """
    if status == 503:
        raise _unavailable(model_id, body)
    if not content_type.startswith("application/json"):
        logger.error("A replica of `%s` answered %d: %s", model_id, status, body[:500])
        raise EngineError("The model's replica failed on this request; its log says why.")


def _unavailable(model_id: str, body: bytes) -> UnavailableError:
    """The error for a 503: the replica's own if it says what is unavailable, else that the model has no free slot."""
    try:
        error = json.loads(body)["error"]
        if error["code"] == ADAPTER_UNAVAILABLE:
            return UnavailableError(str(error["message"]), "model", ADAPTER_UNAVAILABLE, 10)
        if error["code"] == ConstraintNotCheckedError.default_code:
            return ConstraintNotCheckedError(str(error["message"]))
    except (ValueError, KeyError, TypeError):
        pass
    return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")


def interrupted() -> EngineError:
    """The error for a reply that no replica can continue."""
    return EngineError("The model's replica broke off in the middle of its answer.")


def interrupted_event(path: str) -> bytes:
    """The last event of a stream that no replica can continue."""
    return error_event(interrupted(), path)
