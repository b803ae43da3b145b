"""The replica's HTTP server, for routers that reach it by the network only."""

from __future__ import annotations

from functools import partial

from starlette.types import ASGIApp

from rayllm.config import RouterConfig
from rayllm.serving.http.bounded_heads import BoundedHeads
from rayllm.serving.http.uvicorn_server import EmbeddedServer, embedded_server

# Routers pass on parts of heads that are within their own limit, with headers of theirs.
_LIMITS = RouterConfig(max_header_bytes=256 * 1024, header_timeout_s=30)


def http_server(app: ASGIApp, host: str) -> EmbeddedServer:
    """A server on a free port."""
    protocol = partial(BoundedHeads, limits=lambda: _LIMITS)
    # Routers keep their connections open; draining decides when they end.
    return embedded_server(app, protocol, host=host, port=0, timeout_keep_alive=3600)
