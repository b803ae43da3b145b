"""`GET /openapi.json`: the OpenAPI description of the router's endpoints."""

import asyncio
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from rayllm.serving.router.http.static_file import StaticFile

PATH = "/openapi.json"
FILE = Path(__file__).with_name("openapi.json")
"""Written by `make generate`."""


async def describe(request: Request) -> Response:
    """Answer `GET` with the description, compressed if the client accepts gzip."""
    return await (await asyncio.to_thread(_file)).answer(request)


@cache
def _file() -> StaticFile:
    return StaticFile(FILE, {"content-type": "application/json"})
