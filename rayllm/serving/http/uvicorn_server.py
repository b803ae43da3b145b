"""A uvicorn server inside a Ray actor (for uvicorn 0.54)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp


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
