"""Error replies from middleware."""

from __future__ import annotations

import json

from starlette.types import Send

from rayllm.core.error_shapes import error_body
from rayllm.core.errors import RayLLMError


async def send_error(send: Send, error: RayLLMError, path: str) -> None:
    """Send `error` as the whole reply to a request for `path`."""
    body = json.dumps(error_body(error, path)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
