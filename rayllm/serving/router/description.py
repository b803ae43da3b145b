"""`GET /openapi.json`: the OpenAPI description of the router's endpoints."""

from __future__ import annotations

import asyncio
import gzip
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

PATH = "/openapi.json"
FILE = Path(__file__).with_name("openapi.json")
"""Written by `make generate`."""


async def describe(request: Request) -> Response:
    """Answer `GET` with the description, compressed if the client accepts gzip."""
    body, headers = await asyncio.to_thread(_compressed), {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    else:
        body = gzip.decompress(body)
    return Response(body, headers=headers, media_type="application/json")


@cache
def _compressed() -> bytes:
    # Half a megabyte uncompressed.
    return gzip.compress(FILE.read_bytes(), mtime=0)
