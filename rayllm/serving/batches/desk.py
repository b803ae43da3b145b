"""Files and batches as one router has them: the routes, and the care for what was taken in."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayllm.config import BatchesConfig
from rayllm.errors import RouteNotFoundError
from rayllm.serving.batches.batches_api import BatchesApi
from rayllm.serving.batches.files_api import FilesApi
from rayllm.serving.batches.keeper import Keeper
from rayllm.serving.batches.stores import Stores, open_stores

FILES, BATCHES = "/v1/files", "/v1/batches"


class Desk:
    """Where clients bring files and batches.

    Args:
        config: where they are kept, and how large they may be; None takes none, and says so.
        start: starts the runner of a batch, unless there is one; it blocks.
    """

    def __init__(self, config: BatchesConfig | None, start: Callable[[str], None]) -> None:
        self._keeper: Keeper | None = None
        self.routes = _closed()
        if config is not None:
            stores = open_stores(config.storage)
            self._keeper = Keeper(stores, config.max_running, start)
            self.routes = _routes(stores, config.max_file_bytes, self._keeper.wake)

    def open(self) -> None:
        """Begin to look after batches."""
        if self._keeper:
            self._keeper.open()

    def close(self) -> None:
        """Look after them no more. Those that are worked on go on."""
        if self._keeper:
            self._keeper.close()


def _routes(stores: Stores, max_file_bytes: int, wake: Callable[[], None]) -> list[Route]:
    files, batches = FilesApi(stores, max_file_bytes), BatchesApi(stores, wake)
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


def _closed() -> list[Route]:
    paths = [path + rest for path in (FILES, BATCHES) for rest in ("", "/{rest:path}")]
    return [Route(path, _refuse, methods=["GET", "POST", "DELETE"]) for path in paths]


async def _refuse(request: Request) -> Response:
    raise RouteNotFoundError("This service keeps no files and batches: set `router.batches.storage`.")
