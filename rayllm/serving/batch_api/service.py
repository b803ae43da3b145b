"""The Files and Batches APIs of one router: its routes and its scheduler."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayllm.config import BatchesConfig
from rayllm.core.errors import PermissionDeniedError, RequestError, RouteNotFoundError
from rayllm.core.hosts import is_loopback
from rayllm.serving.batch_api.endpoints.batches import BatchesApi
from rayllm.serving.batch_api.endpoints.files import FilesApi
from rayllm.serving.batch_api.storage.quota import StorageQuota
from rayllm.serving.batch_api.storage.stores import Stores, in_thread, open_stores
from rayllm.serving.cluster.background import in_background

logger = logging.getLogger(__name__)

FILES, BATCHES = "/v1/files", "/v1/batches"
_PERIOD_S = 10.0
_SWEEP_S = 3600.0


def batch_service(
    config: BatchesConfig | None,
    start_runner: Callable[[str], None],
    hosts: Sequence[str] = ("127.0.0.1",),
    has_keys: bool = False,
) -> tuple[list[Route], "BatchScheduler | None"]:
    """The routes, and the scheduler of batches.

    Args:
        config: storage and limits; with None, the endpoints answer 404, and there is no scheduler.
        start_runner: starts the runner of a batch, unless it has one; blocks.
        hosts: hosts that the service listens on. Existing batches are executed whatever the hosts are.
        has_keys: whether callers need keys, which separate their files.
    """
    if config is None:
        message = "This service keeps no files and batches: set `router.batches.storage`."
        return _refusing_routes(RouteNotFoundError, message), None
    stores = open_stores(config.storage)
    scheduler = BatchScheduler(stores, config.max_running, start_runner)
    public = [host for host in hosts if not is_loopback(host)]
    if public and not (config.allow_remote or has_keys):
        message = (
            f"This service listens on {public[0]}, where others could read and delete every file: it takes files "
            "and batches there only with `router.keys`, or with `router.batches.allow_remote: true`."
        )
        return _refusing_routes(PermissionDeniedError, message), scheduler
    return _routes(stores, config, scheduler.wake), scheduler


def _routes(stores: Stores, config: BatchesConfig, wake: Callable[[], None]) -> list[Route]:
    quota = StorageQuota(stores, config)
    files = FilesApi(stores, quota, config.max_file_bytes)
    batches = BatchesApi(stores, quota, config.max_batches, wake)
    return [
        Route(FILES, files.create, methods=["POST"]),
        Route(FILES, files.list, methods=["GET"]),
        Route(f"{FILES}/{{id}}", files.get, methods=["GET"]),
        Route(f"{FILES}/{{id}}", files.delete, methods=["DELETE"]),
        Route(f"{FILES}/{{id}}/content", files.content, methods=["GET"]),
        Route(BATCHES, batches.create, methods=["POST"]),
        Route(BATCHES, batches.list, methods=["GET"]),
        Route(f"{BATCHES}/{{id}}", batches.get, methods=["GET"]),
        Route(f"{BATCHES}/{{id}}/cancel", batches.cancel, methods=["POST"]),
    ]


def _refusing_routes(error: type[RequestError], message: str) -> list[Route]:
    async def refuse(request: Request) -> Response:
        raise error(message)

    paths = [path + rest for path in (FILES, BATCHES) for rest in ("", "/{rest:path}")]
    return [Route(path, refuse, methods=["GET", "POST", "DELETE"]) for path in paths]


class BatchScheduler:
    """Schedules the batches in one folder: at start, when woken, and periodically while a batch is unfinished.

    The schedulers of several routers need no coordination: all choose the same batches, and a batch has at most one
    runner.
    """

    def __init__(self, stores: Stores, max_running: int, start_runner: Callable[[str], None]) -> None:
        self._files, self._batches = stores
        self._max_running = max_running
        self._start_runner = start_runner
        self._woken = asyncio.Event()
        self._sweep_at = float("-inf")
        self._loop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop_task = in_background(self._loop())

    def stop(self) -> None:
        """Stop scheduling. Runners, and so batches in progress, continue."""
        if self._loop_task is not None:
            self._loop_task.cancel()

    def wake(self) -> None:
        self._woken.set()

    async def _loop(self) -> None:
        while True:
            self._woken.clear()
            try:
                period = _PERIOD_S if await in_thread(self._schedule) else _SWEEP_S
            except Exception as error:
                logger.warning("Batches cannot be scheduled now: %r", error)
                period = _PERIOD_S
            with suppress(TimeoutError):
                # Not `wait_for`, which in Python 3.11 may swallow a cancellation.
                async with asyncio.timeout(period):
                    await self._woken.wait()

    def _schedule(self) -> bool:
        """Start runners for all due batches. Returns whether any batch is due."""
        if time.monotonic() >= self._sweep_at:
            self._files.sweep(self._batches.inputs)
            self._sweep_at = time.monotonic() + _SWEEP_S
        due = self._batches.due(self._max_running)
        for batch_id in due:
            self._start_runner(batch_id)
        return bool(due)
