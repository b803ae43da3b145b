"""A uvicorn server inside a Ray actor, and every private name of uvicorn that RayLLM uses (for uvicorn 0.54).

`tests/unit/serving/http/test_uvicorn_server.py` checks them against the installed uvicorn.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

PRIVATE_NAMES = {
    "uvicorn": ("Server.capture_signals", "Server.started", "Server.should_exit"),
    # Limits on clients: serving/router/http/protocol.py.
    "uvicorn.protocols.http.httptools_impl": (
        "HttpToolsProtocol._unset_keepalive_if_required",
        "HttpToolsProtocol.cycle",
        "HttpToolsProtocol.loop",
        "HttpToolsProtocol.parser",
        "HttpToolsProtocol.scope",
        "HttpToolsProtocol.timeout_keep_alive",
        "HttpToolsProtocol.timeout_keep_alive_handler",
        "HttpToolsProtocol.transport",
        # Connections that a replica answers: serving/router/http/connection.py.
        "RequestResponseCycle.disconnected",
        "RequestResponseCycle.keep_alive",
        "RequestResponseCycle.message_event",
        "RequestResponseCycle.on_response",
        "RequestResponseCycle.response_complete",
        "RequestResponseCycle.response_started",
        "RequestResponseCycle.scope",
    ),
}
"""Module → the names used from it, dotted for attributes."""


class EmbeddedServer(uvicorn.Server):
    """uvicorn without signal handlers: in an actor, signals belong to Ray."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
