"""Paths of requests as the endpoints name them."""

from __future__ import annotations

from starlette.requests import Request


def path_of(request: Request) -> str:
    """The path of a request below the application's `route_prefix`."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "").rstrip("/"))
