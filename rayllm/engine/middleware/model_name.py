"""The model's name in replies: the one that the client requested for, alias or not."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.core import headers

_requested_model: ContextVar[str | None] = ContextVar("requested_model", default=None)


def requested_model() -> str | None:
    """The model name in the current request."""
    return _requested_model.get()


class ModelNameMiddleware:
    """Remembers the model name that the router passes in a header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _requested_model.set(next((v.decode() for k, v in scope["headers"] if k == headers.MODEL.encode()), None))
        await self._app(scope, receive, send)


def echo_requested_name(models: Any, names: tuple[str, ...]) -> None:
    """Make vLLM reply with the requested name, if it is an adapter's or one of `names`.

    `models` is vLLM's `OpenAIServingModels`, whose `model_name` names every reply.
    """
    original = models.model_name

    def model_name(lora_request: Any = None) -> str:
        requested = _requested_model.get()
        # The engine's name of an adapter holds its version; clients know it by another.
        return (
            requested if requested and (lora_request is not None or requested in names) else str(original(lora_request))
        )

    models.model_name = model_name
