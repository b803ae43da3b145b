"""Request paths without the application's route prefix."""

from __future__ import annotations

from starlette.requests import Request


def path_of(request: Request) -> str:
    """The request's path below `route_prefix`."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "").rstrip("/"))
