"""Private names of uvicorn: all that RayLLM uses."""

from __future__ import annotations

from tests.private_names import missing_names

# Module → the names used from it, dotted for attributes.
PRIVATE_NAMES = {
    "uvicorn": (
        "Config.http_protocol_class",
        "Server.capture_signals",
        "Server.lifespan",
        "Server.server_state",
        "Server.should_exit",
        "Server.started",
    ),
    # Limits on clients: serving/http/bounded_heads.py and serving/router/http/protocol.py.
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
        # Connections that a replica answers: serving/wire/connection.py.
        "RequestResponseCycle.disconnected",
        "RequestResponseCycle.flow",
        "RequestResponseCycle.keep_alive",
        "RequestResponseCycle.message_event",
        "RequestResponseCycle.on_response",
        "RequestResponseCycle.response_complete",
        "RequestResponseCycle.response_started",
        "RequestResponseCycle.scope",
        # Replies after which the connection ends: serving/router/http/protocol.py.
        "RequestResponseCycle.transport",
    ),
}


def test_uvicorn_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []
