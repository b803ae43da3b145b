"""What the current request's scope says, for code that is not given the scope."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.token_log import TokenLog

_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


class RequestScopeMiddleware:
    """ASGI middleware that keeps the current request's scope for the functions of this module."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _scope.set(scope if scope["type"] == "http" else None)
        await self._app(scope, receive, send)


def requested_model() -> str:
    """The name of the model that the client requested, alias or not, as the router passes it; "" if it does not."""
    scope = _scope.get()
    return header(scope, headers.MODEL) if scope else ""


def token_log() -> TokenLog | None:
    """The log of the current request's reply; None if no other engine could continue the reply."""
    scope = _scope.get()
    return TokenLog.in_scope(scope) if scope else None


def echo_requested_name(models: Any, names: tuple[str, ...]) -> None:
    """Make vLLM reply with the requested name, if it is an adapter's or one of `names`.

    `models` is vLLM's `OpenAIServingModels`, whose `model_name` names every reply.
    """
    original = models.model_name

    def model_name(lora_request: Any = None) -> str:
        requested = requested_model()
        # The engine's name of an adapter holds its version; clients know it by another.
        is_known = lora_request is not None or requested in names
        return requested if requested and is_known else str(original(lora_request))

    models.model_name = model_name
