"""Request bodies: limits on their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rayllm.core.errors import BodyTooLargeError

if TYPE_CHECKING:
    from starlette.requests import Request


async def read_body(request: Request, limit: int, take: Callable[[int], None] = lambda _: None) -> bytes:
    """Read the whole body.

    Args:
        take: called with the size of each part; may raise to stop reading.

    Raises:
        BodyTooLargeError: it is longer than `limit`; raised as early as possible.
        ClientDisconnect: the client disconnected.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        take(len(part))
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {limit} bytes (router.max_body_bytes).")
