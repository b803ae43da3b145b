"""Background tasks, which outlive the request that starts them."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

# The event loop itself keeps only weak references.
_tasks: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task outside of the current request's context.

    Ray Serve attributes handle calls made in a request's context to the request: they are cancelled with the request,
    and of two calls that wait for the same deployment, one is lost.
    """
    task = asyncio.create_task(work, context=Context())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task
