"""A uvicorn server inside a Ray actor (for uvicorn 0.54)."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from rayllm.config import RouterConfig
from rayllm.serving.http.bounded_heads import BoundedHeads

# Routers pass on parts of heads that are within their own limit, with headers of theirs.
_LIMITS = RouterConfig(max_header_bytes=256 * 1024, header_timeout_s=30)


class EmbeddedServer(uvicorn.Server):
    """uvicorn without signal handlers: in an actor, signals belong to Ray."""

    def new_protocol(self) -> asyncio.Protocol:
        """The protocol for a connection that something else has accepted."""
        protocol: Any = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def embedded_server(app: ASGIApp, protocol: Callable[..., asyncio.Protocol], **options: Any) -> EmbeddedServer:
    """A server that trusts no headers of proxies, takes no WebSockets and logs only faults."""
    http: Any = protocol
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        proxy_headers=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        **options,
    )
    return EmbeddedServer(config)


def replica_server(app: ASGIApp, host: str) -> EmbeddedServer:
    """The server of a replica, on a free port, for routers that reach the replica by the network only."""
    protocol = partial(BoundedHeads, limits=lambda: _LIMITS)
    # Routers keep their connections open; draining decides when they end.
    return embedded_server(app, protocol, host=host, port=0, timeout_keep_alive=3600)
