"""Calling an application without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from rayllm.core.asgi import Response, call


async def echo(request: Request) -> JSONResponse:
    payload = {
        "path": request.url.path,
        "method": request.method,
        "headers": dict(request.headers),
        "body": (await request.body()).decode(),
        "leaves": await request.is_disconnected(),
    }
    return JSONResponse(payload, 201, {"X-Own": "yes"})


async def streamed(request: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            await asyncio.sleep(0)
            yield b"%d," % number

    return StreamingResponse(parts())


async def broken(request: Request) -> JSONResponse:
    raise RuntimeError("it broke")


APP = Starlette(
    routes=[
        Route("/echo/{name}", echo, methods=["POST", "PUT"]),
        Route("/streamed", streamed, methods=["POST"]),
        Route("/broken", broken, methods=["POST"]),
    ]
)


async def test_an_application_sees_a_request_and_its_answer_is_whole() -> None:
    answer = await call(APP, "/echo/a", b'{"\xc3\xa4": 1}', {"Content-Type": "application/json", "x-key": "1"})
    payload = json.loads(answer.body)
    assert (answer.status, answer.headers["x-own"]) == (201, "yes")
    assert answer.headers["content-type"] == "application/json"
    assert (payload["path"], payload["method"], payload["body"]) == ("/echo/a", "POST", '{"ä": 1}')
    assert payload["headers"] == {"content-type": "application/json", "x-key": "1", "content-length": "9"}
    assert payload["leaves"] is False


async def test_other_methods() -> None:
    assert json.loads((await call(APP, "/echo/a", b"", {}, "PUT")).body)["method"] == "PUT"
    assert (await call(APP, "/echo/a", b"", {}, "GET")).status == 405
    assert (await call(APP, "/none", b"", {})).status == 404


async def test_a_stream_is_put_together() -> None:
    assert (await call(APP, "/streamed", b"", {})).body == b"0,1,2,"


async def test_layers_that_wait_for_the_client_to_leave_do_not_hold_the_answer() -> None:
    async def dispatch(request: Request, following: Any) -> Any:
        return await following(request)

    app = BaseHTTPMiddleware(APP, dispatch)
    assert (await asyncio.wait_for(call(app, "/streamed", b"", {}), 5)).body == b"0,1,2,"


async def test_an_application_that_breaks_is_heard() -> None:
    with pytest.raises(RuntimeError, match="it broke"):
        await call(APP, "/broken", b"", {})


async def test_an_application_that_says_nothing_has_failed() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    assert await call(silent, "/", b"", {}) == Response(500, {}, b"")


async def test_whoever_is_cancelled_takes_the_work_along() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    task = asyncio.create_task(call(slow, "/", b"", {}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
