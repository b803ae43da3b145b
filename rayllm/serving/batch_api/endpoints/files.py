"""OpenAI's Files API. Source: https://platform.openai.com/docs/api-reference/files"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rayllm.access import caller_of
from rayllm.core.errors import ConflictError
from rayllm.serving.batch_api.endpoints.upload import Upload, read_form
from rayllm.serving.batch_api.objects import FILE, File
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.quota import StorageQuota
from rayllm.serving.batch_api.storage.stores import Stores, in_thread

if TYPE_CHECKING:
    from pyarrow import NativeFile

_PAGE = 10_000
_CHUNK = 256 * 1024


class FilesApi:
    """The endpoints."""

    def __init__(self, stores: Stores, quota: StorageQuota, max_file_bytes: int) -> None:
        self._files, self._batches = stores
        self._quota = quota
        self._max_file_bytes = max_file_bytes

    async def create(self, request: Request) -> Response:
        """`POST /v1/files`"""
        async with self._quota.upload() as grow:
            form = await read_form(request, self._max_file_bytes, grow)
            try:
                upload = Upload.of(form, self._max_file_bytes)
                tenant = caller_of(request.scope).tenant
                file = await in_thread(self._files.put, **vars(upload), tenant=tenant)
            finally:
                await form.close()
        return JSONResponse(file.public())

    async def list(self, request: Request) -> Response:
        """`GET /v1/files`"""
        cursor = Cursor.of(request.query_params, FILE, _PAGE, _PAGE)
        page = await in_thread(self._files.page, cursor, request.query_params.get("purpose"), caller_of(request.scope))
        return JSONResponse(page.public(File.public))

    async def get(self, request: Request) -> Response:
        """`GET /v1/files/{id}`"""
        return JSONResponse((await self._get(request)).public())

    async def content(self, request: Request) -> Response:
        """`GET /v1/files/{id}/content`"""
        file = await self._get(request)
        content = await in_thread(self._files.open, file.id)
        headers = {
            "content-length": str(file.bytes),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        }
        return StreamingResponse(_chunks(content), media_type="application/octet-stream", headers=headers)

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/files/{id}`"""
        file = await self._get(request)
        await in_thread(self._delete, file.id)
        return JSONResponse({"id": file.id, "object": "file", "deleted": True})

    async def _get(self, request: Request) -> File:
        return await in_thread(self._files.get, request.path_params["id"], caller_of(request.scope))

    def _delete(self, file_id: str) -> None:
        if batch_id := self._batches.inputs().get(file_id):
            message = f"The batch `{batch_id}` is made of this file and has not ended; cancel it first."
            raise ConflictError(message, "file_id")
        self._files.delete(file_id)


def _chunks(content: NativeFile) -> Iterator[bytes]:
    # Starlette takes each chunk in a thread.
    with content:
        while chunk := content.read(_CHUNK):
            yield chunk
