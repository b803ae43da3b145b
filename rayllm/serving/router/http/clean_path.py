"""ASGI middleware that ignores needless slashes in paths."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send


class CleanPath:
    """Removes a trailing slash, and repeated slashes. Redirects would name the wrong scheme or host.

    Args:
        kept: the path of a page, whose relative addresses would lead elsewhere from the path without its slash.
    """

    def __init__(self, app: ASGIApp, kept: str) -> None:
        self._app = app
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root = scope.get("root_path", "").rstrip("/")
            path = re.sub("/{2,}", "/", scope["path"].removeprefix(root))
            if path != self._kept:
                path = path.rstrip("/") or "/"
            scope["path"] = root + path
        await self._app(scope, receive, send)
