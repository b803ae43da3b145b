"""Serves the page at `/ui`. The page has no data of its own: it calls the API with the key that a person enters."""

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rayllm.serving.router.http.static_file import StaticFile

PATH = "/ui"
STATIC = Path(__file__).parent / "static"
# Nothing from another host, nothing inline, and no embedding.
_POLICY = {
    "default-src": "'none'",
    **dict.fromkeys(("script-src", "style-src", "connect-src"), "'self'"),
    "img-src": "'self' data: blob:",
    **dict.fromkeys(("frame-ancestors", "base-uri", "form-action"), "'none'"),
}
_HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"


def _file(path: Path) -> StaticFile:
    # The names of all but the index change with their content.
    caching = "no-cache" if path.name == _INDEX else "public, max-age=31536000, immutable"
    return StaticFile(path, _HEADERS | {"content-type": _MEDIA_TYPES[path.suffix], "cache-control": caching})


async def _to_the_page(request: Request) -> Response:
    """`GET /ui/`: redirect to `/ui`, which the relative addresses in the page need."""
    return RedirectResponse(f"..{PATH}", 308)


@cache
def page_routes() -> tuple[Route, ...]:
    """A route for the page and for each of its files, which the first call reads."""
    files = {path.name: _file(path) for path in sorted(STATIC.iterdir()) if path.suffix in _MEDIA_TYPES}
    return (
        Route(PATH, files.pop(_INDEX).answer),
        Route(f"{PATH}/", _to_the_page),
        *(Route(f"{PATH}/{name}", file.answer) for name, file in files.items()),
    )
