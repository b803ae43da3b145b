"""Fetch and decode the images of rows."""

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
from rayllm.core.errors import RequestError

_CACHE_BYTES = 256 * 2**20
_THREADS = 16
_TIMEOUT_S = 30.0
_KINDS = ("image", "image_url", "input_image", "image_pil")


class PrepareImageStage:
    """Decodes the images of a row's messages and of its `images` into `images`, in order.

    An image is a `PIL.Image`, the bytes of a file, an array (height, width, 3), a path, or a URI: `http://`,
    `https://`, `file://`, `data:`, `s3://` or `gs://`. Each URI is fetched once.
    """

    def __init__(self) -> None:
        self._cache: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "images")

    def __call__(self, rows: list[Row]) -> list[Row]:
        return list(self._threads.map(self._prepared, rows))

    def _prepared(self, row: Row) -> Row:
        try:
            images = [self._image(image) for image in _images(row)]
        except Exception as error:  # image files may be broken in any way
            return failed(row, error)
        return {**row, "images": images} if images else row

    def _image(self, image: Any) -> Image.Image:
        if isinstance(image, Image.Image):
            return _as_rgb(image)
        if hasattr(image, "__array_interface__"):
            return _as_rgb(_from_array(image))
        raw = image if isinstance(image, bytes) else self._bytes(str(image))
        try:
            return _as_rgb(_upright(Image.open(BytesIO(raw))))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            name = "the bytes" if isinstance(image, bytes) else f"`{str(image)[:200]}`"
            raise RequestError(f"images: {name} cannot be read as an image.") from None

    def _bytes(self, uri: str) -> bytes:
        if uri.startswith("data:"):
            return _inline(uri)
        with self._lock:
            is_cached = uri in self._cache
            future = self._cache.setdefault(uri, Future())
        if not is_cached:
            self._fetch(uri, future)
        return future.result()

    def _fetch(self, uri: str, future: Future[bytes]) -> None:
        """Fetch for all threads that wait on `future`. A failure is not cached."""
        try:
            raw = _fetch(uri)
        except BaseException as error:
            with self._lock:
                del self._cache[uri]
            future.set_exception(error)
            return
        with self._lock:
            future.set_result(raw)
            self._size += len(raw)
            while self._size > _CACHE_BYTES:
                # Evict the oldest complete entry; the others have no size yet.
                oldest = next(uri for uri, each in self._cache.items() if each.done())
                self._size -= len(self._cache.pop(oldest).result())


def _images(row: Row) -> Iterator[Any]:
    messages = row.get("messages")
    for message in messages if messages is not None and not isinstance(messages, str) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if content is not None and not isinstance(content, str) else ():
            if isinstance(part, Mapping) and part.get("type") in _KINDS:
                yield _from_part(part)
    images = row.get("images")
    yield from (images if isinstance(images, list | tuple) else () if images is None else [images])


def _from_part(part: Mapping[str, Any]) -> Any:
    image = next((part[kind] for kind in _KINDS if part.get(kind) is not None), None)
    if isinstance(image, Mapping):
        image = image.get("url")
    if image is None:
        raise RequestError("messages: a part of type `image_url` needs an `image_url`.")
    return image


def _from_array(array: Any) -> Image.Image:
    try:
        return Image.fromarray(array)
    except (TypeError, ValueError):
        raise RequestError(f"images: an array must be (height, width, 3) bytes, not {array.shape}.") from None


def _upright(image: Image.Image) -> Image.Image:
    """The image rotated as its EXIF orientation says."""
    with suppress(Exception):  # EXIF data may be broken
        return ImageOps.exif_transpose(image)
    return image


def _as_rgb(image: Image.Image) -> Image.Image:
    """The image without transparency, on white as in vLLM's own server."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    opaque = Image.new("RGB", rgba.size, "white")
    opaque.paste(rgba, mask=rgba.getchannel("A"))
    return opaque


def _inline(uri: str) -> bytes:
    head, _, encoded = uri.partition(",")
    try:
        if not head.endswith(";base64"):
            raise binascii.Error
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise RequestError("images: a `data:` URI must hold base64.") from None


def _fetch(uri: str) -> bytes:
    if uri.startswith(("http://", "https://")):
        return _from_web(uri)
    if uri.startswith(("s3://", "gs://")):
        return _from_bucket(uri)
    path = unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"images: `{uri[:200]}` cannot be read: {problem}.") from None


def _from_bucket(uri: str) -> bytes:
    from rayllm.sources.storage import open_folder

    filesystem, path = open_folder(uri)
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())
    except OSError as error:
        problem = " ".join(str(error).split())[:300]
        raise RequestError(f"images: `{uri[:200]}` cannot be read: {problem}.") from None


def _from_web(url: str) -> bytes:
    import urllib3

    try:
        response = urllib3.request("GET", url, timeout=_TIMEOUT_S, retries=3)
    except urllib3.exceptions.HTTPError as error:
        raise RequestError(f"images: `{url[:200]}` cannot be fetched: {error}.") from None
    if response.status >= 400:
        raise RequestError(f"images: `{url[:200]}` answered {response.status}.")
    return response.data
