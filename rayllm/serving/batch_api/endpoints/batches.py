"""OpenAI's Batches API. Source: https://platform.openai.com/docs/api-reference/batch"""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayllm.access import Caller, caller_of
from rayllm.core.errors import ObjectNotFoundError, RequestError
from rayllm.core.json_body import parse_body, read_body
from rayllm.serving.batch_api.objects import BATCH, Batch, BatchRequest
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.quota import StorageQuota
from rayllm.serving.batch_api.storage.stores import Stores, in_thread

_MAX_BYTES = 65536
_PAGE, _LARGEST_PAGE = 20, 100


class BatchesApi:
    """Endpoints of the Batches API."""

    def __init__(self, stores: Stores, quota: StorageQuota, max_kept: int, wake: Callable[[], None]) -> None:
        self._files, self._batches = stores
        self._quota = quota
        self._max_kept = max_kept
        self._wake = wake

    async def create(self, request: Request) -> Response:
        """`POST /v1/batches`"""
        batch_request = BatchRequest.parse(parse_body(await read_body(request, _MAX_BYTES)))
        batch = await in_thread(self._create, batch_request, caller_of(request.scope))
        self._wake()
        return JSONResponse(batch.public())

    async def list(self, request: Request) -> Response:
        """`GET /v1/batches`"""
        cursor = Cursor.from_query(request.query_params, BATCH, _PAGE, _LARGEST_PAGE)
        page = await in_thread(self._batches.page, cursor, caller_of(request.scope))
        return JSONResponse(page.public(Batch.public))

    async def get(self, request: Request) -> Response:
        """`GET /v1/batches/{id}`"""
        batch = await in_thread(self._batches.get, request.path_params["id"], caller_of(request.scope))
        return JSONResponse(batch.public())

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/batches/{id}/cancel`"""
        await read_body(request, _MAX_BYTES)
        batch = await in_thread(self._batches.cancel, request.path_params["id"], caller_of(request.scope))
        self._wake()
        return JSONResponse(batch.public())

    def _create(self, batch_request: BatchRequest, caller: Caller) -> Batch:
        try:
            file = self._files.get(batch_request.input_file_id, caller)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(error.message, "input_file_id") from None
        if file.purpose != "batch":
            message = f"The file `{file.id}` was uploaded for `{file.purpose}`; upload it with `purpose: batch`."
            raise RequestError(message, "input_file_id")
        self._quota.check_batch()
        batch = self._batches.create(batch_request, caller)
        self._batches.forget_ended(self._max_kept)
        return batch
