"""Serves the page at `/ui`. Its files hold no data: the page calls the API, with the key that a person enters."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PATH = "/ui"
STATIC = Path(__file__).parent / "static"
# Nothing of another host, nothing inline, and no page around it.
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data: blob:",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
}
_HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept-encoding",
}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"


class _File:
    """A file of the page, in memory: as it is, and compressed."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._compressed = gzip.compress(self._body, mtime=0)
        # The names of all but the index change with their content.
        caching = "no-cache" if path.name == _INDEX else "public, max-age=31536000, immutable"
        self._headers = _HEADERS | {"content-type": _MEDIA_TYPES[path.suffix], "cache-control": caching}

    async def answer(self, request: Request) -> Response:
        """Answer `GET` with the file, compressed where the browser takes it."""
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._compressed, headers=self._headers | {"content-encoding": "gzip"})
        return Response(self._body, headers=self._headers)


async def _to_the_page(request: Request) -> Response:
    """`GET /ui/`, from which the addresses in the page would lead elsewhere."""
    return RedirectResponse(f"..{PATH}", 308)


@cache
def page_routes() -> tuple[Route, ...]:
    """A route for the page and for each of its files. Reads them when it is first called."""
    files = {path.name: _File(path) for path in sorted(STATIC.iterdir()) if path.suffix in _MEDIA_TYPES}
    return (
        Route(PATH, files.pop(_INDEX).answer),
        Route(f"{PATH}/", _to_the_page),
        *(Route(f"{PATH}/{name}", file.answer) for name, file in files.items()),
    )
