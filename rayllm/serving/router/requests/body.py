"""Request bodies: limits on their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rayllm.core.errors import BodyTooLargeError, UnavailableError

if TYPE_CHECKING:
    from starlette.requests import Request


class BodyBudget:
    """A limit on the bytes of request bodies that one process holds at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """One request's share of the budget, returned at the end of the block. Call it with the size of each part
        received.

        The call raises UnavailableError if the budget is exhausted.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self.held + size > self._limit:
                raise UnavailableError("Too many request bodies are in memory (router.max_pending_body_bytes).")
            self.held += size
            taken += size

        try:
            yield take
        finally:
            self.held -= taken


async def read_body(request: Request, limit: int, take: Callable[[int], None] = lambda _: None) -> bytes:
    """Read the whole body.

    Args:
        take: called with the size of each part; may raise to stop reading.

    Raises:
        BodyTooLargeError: it is longer than `limit`; raised as early as possible.
        ClientDisconnect: the client disconnected.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
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
