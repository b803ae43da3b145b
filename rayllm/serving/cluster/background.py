"""Work that a request starts and nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any


def in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start work that has nothing to do with the request in whose course it starts.

    Ray Serve takes all calls in the context of one request for parts of it: it cancels them with the request, and of
    two that wait for a replica of the same deployment at once it forgets one.
    """
    return asyncio.create_task(work, context=Context())
