"""A uvicorn server inside a Ray actor, and every private name of uvicorn that RayLLM uses (for uvicorn 0.54).

`tests/unit/serving/http/test_uvicorn_server.py` checks them against the installed uvicorn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

PRIVATE_NAMES = {
    "uvicorn": (
        "Config.http_protocol_class",
        "Server.capture_signals",
        "Server.lifespan",
        "Server.server_state",
        "Server.should_exit",
        "Server.started",
    ),
    # Limits on clients: serving/router/http/protocol.py.
    "uvicorn.protocols.http.httptools_impl": (
        "HttpToolsProtocol._unset_keepalive_if_required",
        "HttpToolsProtocol.cycle",
        "HttpToolsProtocol.loop",
        "HttpToolsProtocol.on_response_complete",
        "HttpToolsProtocol.parser",
        "HttpToolsProtocol.pipeline",
        "HttpToolsProtocol.scope",
        "HttpToolsProtocol.timeout_keep_alive",
        "HttpToolsProtocol.timeout_keep_alive_handler",
        "HttpToolsProtocol.transport",
        # Connections that a replica answers: serving/router/http/connection.py.
        "RequestResponseCycle.disconnected",
        "RequestResponseCycle.flow",
        "RequestResponseCycle.keep_alive",
        "RequestResponseCycle.message_event",
        "RequestResponseCycle.on_response",
        "RequestResponseCycle.response_complete",
        "RequestResponseCycle.response_started",
        "RequestResponseCycle.scope",
        # Replies after which the connection ends: serving/router/http/lingering.py.
        "RequestResponseCycle.transport",
    ),
}
"""Module → the names used from it, dotted for attributes."""


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
