"""A client that leaves ends its request in the engine."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.service import Service

# Hundreds of tokens: many seconds of work if nobody stops it.
LONG = {
    "model": "rayllm-demo",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 900,
    "ignore_eos": True,
    "stop": None,
    "min_tokens": 900,
}


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether `condition` comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@contextmanager
def asked(service: Service, body: dict[str, Any], **headers: str) -> Iterator[socket.socket]:
    """A connection on which a chat was asked for; it is cut when the block ends."""
    host, port = service.url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", f"host: {host}", "content-type: application/json"]
    lines += [f"content-length: {len(raw)}", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        yield connection


@pytest.mark.parametrize("headers", [{}, {"x-request-disconnect-disabled": "?1"}], ids=["plain", "with Serve's header"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_aborts_in_the_engine(service: Service, stream: bool, headers: dict[str, str]) -> None:
    assert within(20, lambda: service.unfinished() == 0)
    with asked(service, {**LONG, "stream": stream}, **headers) as connection:
        if stream:
            assert b"200 OK" in connection.recv(100)
        assert within(5, lambda: service.unfinished() == 1)
    left = time.monotonic()
    assert within(10, lambda: service.unfinished() == 0)
    # Far less than the rest of the answer would take.
    assert time.monotonic() - left < 1


def test_the_slots_are_free_again(service: Service) -> None:
    """The second model takes 8 at once and lets one wait: after eight that left there is room for eight more."""
    body = {"model": "demo/plain:1.0", "prompt": "a", "max_tokens": 400, "min_tokens": 400, "ignore_eos": True}
    with service.client() as client:
        for _ in range(3):
            requests = [
                client.build_request("POST", "/v1/completions", json={**body, "stream": True}) for _ in range(8)
            ]
            replies = [client.send(request, stream=True) for request in requests]
            assert [reply.status_code for reply in replies] == [200] * 8
            for reply in replies:
                reply.close()
            assert within(2, lambda: service.unfinished("demo--plain:1_0") == 0)
