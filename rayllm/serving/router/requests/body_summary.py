"""The values that a router needs of a JSON body."""

from dataclasses import dataclass
from typing import Any

from rayllm.core.endpoints import CHAT
from rayllm.core.errors import ModelNotFoundError, RequestError
from rayllm.core.json_body import parse_body
from rayllm.routing import RoutingRequest, routing_request
from rayllm.serving.router.requests.demand import Demand, demand_of
from rayllm.serving.router.requests.tools import Tools

_MAX_NAME = 1024


@dataclass(frozen=True)
class Summary:
    """What routing and limits need to know of a request, and its tools if some are hosted."""

    model: str
    wants_stream: bool
    routing: RoutingRequest
    demand: Demand
    tools: Tools | None = None


def summarize(raw: bytes, path: str = CHAT) -> Summary:
    """Parse a JSON body, which was sent to a path. Raises RequestError for no JSON object, or one without a model."""
    body = parse_body(raw)
    model, demand = checked_model(body.get("model")), demand_of(path, body)
    routing = routing_request(body, demand.prompt_bytes, demand.answer_limit)
    return Summary(model, bool(body.get("stream")), routing, demand, Tools.in_body(body))


def checked_model(model: Any) -> str:
    """Validate the requested model's name. Raises RequestError, or ModelNotFoundError for a name that is too long."""
    if model is None:
        raise RequestError("The field `model` is required.", "model")
    if not isinstance(model, str) or not model:
        raise RequestError("The field `model` must be a model's name.", "model")
    if len(model) > _MAX_NAME:
        # Shortened, here and in the log.
        message = f"The model `{model[:200]}…` does not exist: no name has more than {_MAX_NAME} characters."
        raise ModelNotFoundError(message, "model")
    return model
