"""OpenAI's Files API. Source: https://platform.openai.com/docs/api-reference/files"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message

from rayllm.access import caller_of
from rayllm.core import asgi
from rayllm.core.errors import BodyTooLargeError, ConflictError, RequestError
from rayllm.serving.batch_api.objects import CLIENTS_PURPOSES, FILE, Expiry, File
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.quota import StorageQuota
from rayllm.serving.batch_api.storage.stores import Stores, in_thread

if TYPE_CHECKING:
    from pyarrow import NativeFile

_PAGE = 10_000
_CHUNK = 256 * 1024
# Allowance for the other fields of the form, and its boundaries.
_FORM_BYTES = 65536
_MAX_FIELDS = 16
_MAX_NAME = 255
_EXPIRES = ("expires_after[anchor]", "expires_after[seconds]")


class FilesApi:
    """Endpoints of the Files API."""

    def __init__(self, stores: Stores, quota: StorageQuota, max_file_bytes: int) -> None:
        self._files, self._batches = stores
        self._quota = quota
        self._max_file_bytes = max_file_bytes

    async def create(self, request: Request) -> Response:
        """`POST /v1/files`"""
        async with self._quota.upload() as grow:
            form = await _read_form(request, self._max_file_bytes, grow)
            try:
                upload = _upload(form, self._max_file_bytes)
                file = await in_thread(self._files.put, *upload, tenant=caller_of(request.scope).tenant)
            finally:
                await form.close()
        return JSONResponse(file.public())

    async def list(self, request: Request) -> Response:
        """`GET /v1/files`"""
        cursor = Cursor.from_query(request.query_params, FILE, _PAGE, _PAGE)
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
            message = f"The batch `{batch_id}` reads this file and has not ended; cancel the batch first."
            raise ConflictError(message, "file_id")
        self._files.delete(file_id)


def _chunks(content: "NativeFile") -> Iterator[bytes]:
    # Starlette reads each chunk in a thread.
    with content:
        while chunk := content.read(_CHUNK):
            yield chunk


def _upload(form: FormData, limit: int) -> tuple[BinaryIO, int, str, str, int | None]:
    """The content of an uploaded file, its size, name and purpose, and its lifetime in seconds.

    Large content is in a temporary file of this node until the form is closed. Raises RequestError for a wrong field,
    or BodyTooLargeError above `limit` bytes.
    """
    for name in form.keys() - {"file", "purpose", *_EXPIRES}:
        raise RequestError(f"`{name[:100]}` is not a known field.", name[:100])
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, UploadFile):
        raise RequestError("`file` must be a file, with its name.", "file")
    if purpose not in CLIENTS_PURPOSES:
        raise RequestError(f"`purpose` must be one of {', '.join(CLIENTS_PURPOSES)}.", "purpose")
    if not file.size:
        raise RequestError("`file` is empty.", "file")
    if file.size > limit:
        raise _too_large(limit)
    name = (file.filename or "file").replace("\\", "/").rpartition("/")[2][:_MAX_NAME]
    lifetime_s = None
    anchor, seconds = (form.get(field) for field in _EXPIRES)
    if anchor is not None or seconds is not None:
        lifetime_s = Expiry.parse({"anchor": anchor, "seconds": seconds}, "expires_after[{}]").seconds
    return file.file, file.size, name, str(purpose), lifetime_s


async def _read_form(request: Request, limit: int, grow: Callable[[int], None]) -> FormData:
    """Parse the form of a request. The caller must close it.

    Args:
        grow: called with the number of bytes received; may raise to abort the upload.

    Raises:
        RequestError: the body is not a multipart form.
        BodyTooLargeError: the body is too large; raised as early as possible.
        UnavailableError: the folder for temporary files is full.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit + _FORM_BYTES:
        raise _too_large(limit)
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        more = len(message.get("body", b""))
        size += more
        if size > limit + _FORM_BYTES:
            raise _too_large(limit)
        grow(more)
        return message

    counted = Request(request.scope, receive)
    return await asgi.read_form(counted, max_files=1, max_fields=_MAX_FIELDS, max_part_size=_FORM_BYTES)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The file is larger than {limit} bytes (router.batches.max_file_bytes).", "file")
