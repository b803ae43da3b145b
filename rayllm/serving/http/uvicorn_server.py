"""A uvicorn server inside a Ray actor (for uvicorn 0.54)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn


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
