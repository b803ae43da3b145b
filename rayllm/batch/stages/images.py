"""Images of rows: found, fetched once, and decoded."""

from __future__ import annotations

import base64
import binascii
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from PIL import Image, ImageOps

from rayllm.batch.rows import Row, failed
from rayllm.errors import RequestError

_CACHE_BYTES = 256 * 2**20
_THREADS = 16
_TIMEOUT_S = 30.0
_KINDS = ("image", "image_url", "input_image", "image_pil")


class PrepareImageStage:
    """Puts the images of a row's messages, and those of its `images`, into `images`: decoded, in order.

    An image is a `PIL.Image`, the bytes of a file, an array (height, width, 3), a path, or an address: `http://`,
    `https://`, `file://`, `data:`, `s3://` or `gs://`.
    """

    def __init__(self) -> None:
        self._fetched: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "images")

    def __call__(self, rows: list[Row]) -> list[Row]:
        return list(self._threads.map(self._prepared, rows))

    def _prepared(self, row: Row) -> Row:
        try:
            images = [self._image(image) for image in _images(row)]
        except Exception as error:  # files of users may be broken in any way
            return failed(row, error)
        return {**row, "images": images} if images else row

    def _image(self, image: Any) -> Image.Image:
        if isinstance(image, Image.Image):
            return _as_rgb(image)
        if hasattr(image, "__array_interface__"):
            return _as_rgb(_of_array(image))
        raw = image if isinstance(image, bytes) else self._bytes(str(image))
        try:
            return _as_rgb(_upright(Image.open(BytesIO(raw))))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            told = "the bytes" if isinstance(image, bytes) else f"`{str(image)[:200]}`"
            raise RequestError(f"images: {told} cannot be read as an image.") from None

    def _bytes(self, address: str) -> bytes:
        if address.startswith("data:"):
            return _inline(address)
        with self._lock:
            is_known = address in self._fetched
            coming = self._fetched.setdefault(address, Future())
        if not is_known:
            self._have(address, coming)
        return coming.result()

    def _have(self, address: str, coming: Future[bytes]) -> None:
        """Fetch what others may wait for. What could not be had is tried again for the next who asks."""
        try:
            raw = _fetch(address)
        except BaseException as error:
            with self._lock:
                del self._fetched[address]
            coming.set_exception(error)
            return
        with self._lock:
            coming.set_result(raw)
            self._size += len(raw)
            while self._size > _CACHE_BYTES:
                # The oldest first; those on their way have no size yet.
                oldest = next(known for known, found in self._fetched.items() if found.done())
                self._size -= len(self._fetched.pop(oldest).result())


def _images(row: Row) -> Iterator[Any]:
    messages = row.get("messages")
    for message in messages if messages is not None and not isinstance(messages, str) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if content is not None and not isinstance(content, str) else ():
            if isinstance(part, Mapping) and part.get("type") in _KINDS:
                yield _in_part(part)
    given = row.get("images")
    yield from (given if isinstance(given, list | tuple) else () if given is None else [given])


def _in_part(part: Mapping[str, Any]) -> Any:
    found = next((part[kind] for kind in _KINDS if part.get(kind) is not None), None)
    if isinstance(found, Mapping):
        found = found.get("url")
    if found is None:
        raise RequestError("messages: a part of type `image_url` needs an `image_url`.")
    return found


def _of_array(array: Any) -> Image.Image:
    try:
        return Image.fromarray(array)
    except (TypeError, ValueError):
        raise RequestError(f"images: an array must be (height, width, 3) bytes, not {array.shape}.") from None


def _upright(image: Image.Image) -> Image.Image:
    """A photograph as it is looked at: the camera may have noted how it was held. What is noted may be broken."""
    with suppress(Exception):
        return ImageOps.exif_transpose(image)
    return image


def _as_rgb(image: Image.Image) -> Image.Image:
    """The image without transparency: on white, as vLLM has the images of requests."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    opaque = Image.new("RGB", seen.size, "white")
    opaque.paste(seen, mask=seen.getchannel("A"))
    return opaque


def _inline(address: str) -> bytes:
    head, _, encoded = address.partition(",")
    try:
        if not head.endswith(";base64"):
            raise binascii.Error
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise RequestError("images: a `data:` address must hold base64.") from None


def _fetch(address: str) -> bytes:
    if address.startswith(("http://", "https://")):
        return _from_web(address)
    if address.startswith(("s3://", "gs://")):
        return _from_bucket(address)
    path = unquote(address.removeprefix("file://")) if address.startswith("file://") else address
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"images: `{address[:200]}` cannot be read: {told}.") from None


def _from_bucket(address: str) -> bytes:
    from rayllm.storage import open_folder

    filesystem, path = open_folder(address)
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())
    except OSError as error:
        told = " ".join(str(error).split())[:300]
        raise RequestError(f"images: `{address[:200]}` cannot be read: {told}.") from None


def _from_web(address: str) -> bytes:
    import urllib3

    try:
        answer = urllib3.request("GET", address, timeout=_TIMEOUT_S, retries=3)
    except urllib3.exceptions.HTTPError as error:
        raise RequestError(f"images: `{address[:200]}` cannot be fetched: {error}.") from None
    if answer.status >= 400:
        raise RequestError(f"images: `{address[:200]}` answered {answer.status}.")
    return answer.data
