"""Refuses requests for tasks that the model does not support."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.core.endpoints import BY_PATH, ENDPOINTS
from rayllm.core.error_shapes import error_response
from rayllm.core.errors import RequestError


class TaskMiddleware:
    """ASGI middleware that refuses endpoints that vLLM does not serve for this model, and lists those that it does."""

    def __init__(self, app: ASGIApp, paths: Collection[str], model_id: str) -> None:
        self._app = app
        self._served = [endpoint for endpoint in ENDPOINTS if endpoint.path in paths]
        self._model_id = model_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in [endpoint.path for endpoint in self._served]:
            await self._app(scope, receive, send)
        else:
            await error_response(self._refusal(scope["path"]), scope["path"])(scope, receive, send)

    def _refusal(self, path: str) -> RequestError:
        paths: dict[str, list[str]] = {}
        for endpoint in self._served:
            paths.setdefault(endpoint.does, []).append(endpoint.path)
        able = "; ".join(f"{does} ({', '.join(where)})" for does, where in paths.items())
        wanted = BY_PATH[path].does if path in BY_PATH else path
        message = f"The model `{self._model_id}` does not support {wanted} ({path}). It supports {able}."
        return RequestError(message, "model")
