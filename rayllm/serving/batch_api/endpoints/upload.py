"""Parsing of file uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.types import Message

from rayllm.core import asgi
from rayllm.core.errors import BodyTooLargeError, RequestError
from rayllm.serving.batch_api.objects import CLIENTS_PURPOSES, Expiry

# Allowance for the other fields of the form, and its boundaries.
_FORM_BYTES = 65536
_MAX_FIELDS = 16
_MAX_NAME = 255
_EXPIRES = ("expires_after[anchor]", "expires_after[seconds]")


@dataclass(frozen=True)
class Upload:
    """An uploaded file: content, size in bytes, name, purpose, and lifetime in seconds.

    Large content is in a temporary file of this node until the form is closed.
    """

    content: BinaryIO
    size: int
    filename: str
    purpose: str
    lifetime_s: int | None

    @classmethod
    def of(cls, form: FormData, limit: int) -> Upload:
        """Validate a form.

        Raises:
            RequestError: a field is missing, invalid or unknown.
            BodyTooLargeError: the file is larger than `limit`.
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
        return cls(file.file, file.size, name, str(purpose), _lifetime(form))


async def read_form(request: Request, limit: int, grow: Callable[[int], None]) -> FormData:
    """Parse the form of a request. The caller must close it.

    Args:
        grow: called with the number of bytes received; may raise to abort the upload.

    Raises:
        RequestError: not a multipart form.
        BodyTooLargeError: too large; raised as early as possible.
        UnavailableError: there is no room for it in the folder for temporary files.
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


def _lifetime(form: FormData) -> int | None:
    anchor, seconds = (form.get(name) for name in _EXPIRES)
    if anchor is None and seconds is None:
        return None
    try:
        return Expiry.model_validate({"anchor": anchor, "seconds": seconds}).seconds
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        param = f"expires_after[{details['loc'][0]}]"
        raise RequestError(f"`{param}`: {details['msg'][0].lower()}{details['msg'][1:]}.", param) from None


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The file is larger than {limit} bytes (router.batches.max_file_bytes).", "file")
