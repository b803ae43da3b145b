"""What a router needs of a JSON body: few values, however large the body is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayllm.errors import ModelNotFoundError, RequestError
from rayllm.routing.request import RoutingRequest, routing_request
from rayllm.serving.router.requests.body import parse_body

_MAX_NAME = 1024


@dataclass(frozen=True)
class Summary:
    """The model that a body names, whether the reply is to be a stream, and what the body means for the routing."""

    model: str
    wants_stream: bool
    routing: RoutingRequest


def summarize(raw: bytes) -> Summary:
    """Read a JSON body.

    Raises:
        RequestError: it is no JSON object fit for an engine, or names no model.
    """
    body = parse_body(raw)
    return Summary(checked_model(body.get("model")), bool(body.get("stream")), routing_request(body, len(raw)))


def checked_model(model: Any) -> str:
    """The model that a request names.

    Raises:
        RequestError: it names none.
        ModelNotFoundError: no model can have that name.
    """
    if model is None:
        raise RequestError("The field `model` is required.", "model")
    if not isinstance(model, str) or not model:
        raise RequestError("The field `model` must be a model's name.", "model")
    if len(model) > _MAX_NAME:
        # Not repeated in full, here or in the log.
        message = f"The model `{model[:200]}…` does not exist: no name has more than {_MAX_NAME} characters."
        raise ModelNotFoundError(message, "model")
    return model
