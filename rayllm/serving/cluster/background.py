"""Background tasks that outlive the request that starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

# The event loop itself keeps only weak references.
_tasks: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task outside of the current request's context.

    Ray Serve attributes all handle calls made in a request's context to that request: it cancels them with it, and
    loses one of two that wait for the same deployment.
    """
    task = asyncio.create_task(work, context=Context())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task
