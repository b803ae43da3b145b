"""A client that leaves ends its request in the engine, wherever that has got to."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.integration.service import Service

# Hundreds of tokens: many seconds of work if nobody stops it.
LONG: dict[str, Any] = {
    "model": "rayllm-demo",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 900,
    # Past the story's end: many different tokens, and so many bytes.
    "temperature": 1,
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
def asked(
    service: Service, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str
) -> Iterator[socket.socket]:
    """A connection on which a request was sent; it is cut when the block ends."""
    host, port = service.url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json"]
    lines += [f"content-length: {len(raw)}", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        yield connection


# The engine takes 64 sequences at once: these fill it.
CROWD = {**LONG, "n": 16}
CROWDS = 4
# Dozens of batches of what the engine takes in one step.
PROMPTS = 192


def long_prompts(**keys: Any) -> dict[str, Any]:
    """Prompts that take the engine many steps; never the same, or it would find them in its cache."""
    words = [f"{random.random()} " * 40 for _ in range(PROMPTS)]
    return {"model": "rayllm-demo", "prompt": words, "max_tokens": 50, "min_tokens": 50, **keys}


@pytest.fixture
def idle(service: Service) -> None:
    """An engine that has nothing to do."""
    assert within(60, lambda: service.unfinished() == 0)


def assert_aborts(service: Service, unfinished: int) -> None:
    """What was asked for is gone; the goal of 0.1 s is measured in `benchmarks.leaving`, where nothing else runs."""
    assert within(1, lambda: service.unfinished() == unfinished)


@pytest.mark.parametrize("headers", [{}, {"x-request-disconnect-disabled": "?1"}], ids=["plain", "with Serve's header"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_aborts_what_is_written(service: Service, idle: None, stream: bool, headers: dict[str, str]) -> None:
    # As many sequences as the engine takes at once: it writes for so long that a look at it comes in time.
    with asked(service, {**LONG, "n": 64, "stream": stream}, **headers) as connection:
        if stream:
            assert b"200 OK" in connection.recv(100)
        assert within(60, lambda: service.unfinished() == 64 and not service.queued_tokens())
    assert_aborts(service, 0)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_aborts_what_is_read(service: Service, idle: None, stream: bool) -> None:
    with asked(service, long_prompts(stream=stream), "/v1/completions"):
        assert within(60, lambda: service.unfinished() == PROMPTS)
        assert service.queued_tokens()
    assert_aborts(service, 0)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_ends_the_wait(service: Service, idle: None, stream: bool) -> None:
    with ExitStack() as crowd:
        for _ in range(CROWDS):
            crowd.enter_context(asked(service, CROWD))
        full = CROWDS * CROWD["n"]
        assert within(60, lambda: service.unfinished() == full and not service.queued_tokens())
        with asked(service, {**LONG, "stream": stream}):
            assert within(60, lambda: service.unfinished() == full + 1)
            assert service.queued_tokens()
        assert_aborts(service, full)
    assert_aborts(service, 0)


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
