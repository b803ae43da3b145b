"""The gate of a draining replica."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rayllm.core.asgi import call
from rayllm.serving.replica.drain import DrainGate

App = Callable[[Any, Any, Any], Awaitable[None]]


def app(status: int, *bodies: bytes, dies: dict[str, bool] | None = None) -> App:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if dies is not None:
            dies["engine"] = True
        await send({"type": "http.response.start", "status": status, "headers": []})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return answer


async def test_a_replica_that_leaves_turns_requests_away_untouched() -> None:
    for draining, dead in ((True, False), (False, True)):
        gate = DrainGate(app(200, b"never"), lambda dead=dead: dead)  # type: ignore[misc]
        gate.is_draining = draining
        answer = await call(gate, "/", b"", {})
        assert (answer.status, answer.headers, answer.body) == (503, {"x-rayllm-leaving": "1"}, b"")


async def test_what_fails_as_the_engine_dies_is_lost_and_no_error_of_the_request() -> None:
    died = {"engine": False}
    gate = DrainGate(app(500, b'{"error": ', b"1}", dies=died), lambda: died["engine"])
    answer = await call(gate, "/", b"", {})
    assert (answer.status, answer.headers, answer.body) == (503, {"x-rayllm-lost": "1"}, b"")


async def test_replies_pass_as_they_are() -> None:
    died = {"engine": False}
    cases = [
        (app(500, b"x"), {"engine": False}, (500, b"x")),
        (app(400, b"x", dies=died), died, (400, b"x")),
        (app(200, b"x", b"y"), {"engine": False}, (200, b"xy")),
    ]
    for made, state, expected in cases:
        gate = DrainGate(made, lambda state=state: state["engine"])  # type: ignore[misc]
        answer = await call(gate, "/", b"", {})
        assert (answer.status, answer.body) == expected
