"""The model's name in a reply: the one that the request asked for, alias or not."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm import headers

_asked_for: ContextVar[str | None] = ContextVar("asked_for", default=None)


def asked_name() -> str | None:
    """The model name of the request that is being answered."""
    return _asked_for.get()


class NameKeeper:
    """ASGI middleware that remembers the name which the router passes in a header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _asked_for.set(next((v.decode() for k, v in scope["headers"] if k == headers.MODEL.encode()), None))
        await self._app(scope, receive, send)


def answer_by_name(models: Any, names: tuple[str, ...]) -> None:
    """Make vLLM's model registry answer with the name asked for, where it is an adapter's or one of `names`.

    Args:
        models: vLLM's `OpenAIServingModels`; it names every reply through `model_name`.
        names: the names that one base model answers to.
    """
    original = models.model_name

    def model_name(lora_request: Any = None) -> str:
        asked = _asked_for.get()
        # What the engine calls an adapter is a name with its version; the router knows what the client asked for.
        return asked if asked and (lora_request is not None or asked in names) else str(original(lora_request))

    models.model_name = model_name
