"""Files and batches as one router has them: the routes, and the care for what was taken in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayllm.config import BatchesConfig
from rayllm.errors import PermissionDeniedError, RequestError, RouteNotFoundError
from rayllm.hosts import is_loopback
from rayllm.serving.batch_api.endpoints.batches import BatchesApi
from rayllm.serving.batch_api.endpoints.files import FilesApi
from rayllm.serving.batch_api.execution.scheduler import BatchScheduler
from rayllm.serving.batch_api.storage.quota import StorageQuota
from rayllm.serving.batch_api.storage.stores import Stores, open_stores

FILES, BATCHES = "/v1/files", "/v1/batches"


class BatchService:
    """Where clients bring files and batches.

    Args:
        config: where they are kept, and how much of them; None takes none, and says so.
        start: starts the runner of a batch, unless there is one; it blocks.
        hosts: where the service listens. What it has is worked on in any case.
    """

    def __init__(
        self, config: BatchesConfig | None, start: Callable[[str], None], hosts: Sequence[str] = ("127.0.0.1",)
    ) -> None:
        self._scheduler: BatchScheduler | None = None
        if config is None:
            said = "This service keeps no files and batches: set `router.batches.storage`."
            self.routes = _closed(RouteNotFoundError, said)
            return
        stores = open_stores(config.storage)
        self._scheduler = BatchScheduler(stores, config.max_running, start)
        public = [host for host in hosts if not is_loopback(host)]
        if public and not config.allow_remote:
            said = (
                f"This service listens on {public[0]}, where others could read and delete every file: it takes files "
                "and batches there only with `router.batches.allow_remote: true`."
            )
            self.routes = _closed(PermissionDeniedError, said)
        else:
            self.routes = _routes(stores, config, self._scheduler.wake)

    def open(self) -> None:
        """Begin to look after batches."""
        if self._scheduler:
            self._scheduler.open()

    def close(self) -> None:
        """Look after them no more. Those that are worked on go on."""
        if self._scheduler:
            self._scheduler.close()


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


def _closed(error: type[RequestError], message: str) -> list[Route]:
    async def refuse(request: Request) -> Response:
        raise error(message)

    paths = [path + rest for path in (FILES, BATCHES) for rest in ("", "/{rest:path}")]
    return [Route(path, refuse, methods=["GET", "POST", "DELETE"]) for path in paths]
