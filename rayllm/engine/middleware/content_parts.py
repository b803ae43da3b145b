"""Parts of messages that vLLM does not read: PDFs become text, and media that the model does not take are refused."""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from rayllm.core.errors import RequestError, UnavailableError
from rayllm.core.limited_process import answer_of
from rayllm.engine.bounded_work import BoundedWork

Body = dict[str, Any]

_WORKER = "rayllm.engine.middleware.pdf_worker"
# Includes the start of the process, which takes seconds under load.
_TIMEOUT_S = 60.0
_BUSY = "Too many PDFs are waiting to be read."
_DATA_URL = "data:application/pdf;base64,"
# A part's type → the object in it with a PDF, and the PDF's field.
_PDFS = {"document": ("source", "data"), "file": ("file", "file_data"), "input_file": ("", "file_data")}
_IS_PDF = ("base64", "application/pdf")
# Where parts are, and have parts themselves.
_HOLDERS = ("content", "output", "source")
_MODALITIES = {"image_url": "image", "input_image": "image", "image": "image", "video_url": "video"}
_MODALITIES |= {"audio_url": "audio", "input_audio": "audio"}


def parts_in(body: Body) -> Iterator[tuple[str, str, Body]]:
    """The field, the place and the part, of each content part in a conversation."""
    for field in ("messages", "input"):
        items = body.get(field)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield from ((field, where, part) for where, part in _parts(f"{field}[{index}]", item))


def _parts(where: str, holder: Body) -> Iterator[tuple[str, Body]]:
    for name in _HOLDERS:
        value = holder.get(name)
        if isinstance(value, dict):
            yield from _parts(f"{where}.{name}", value)
        for index, part in enumerate(value if isinstance(value, list) else ()):
            if isinstance(part, dict):
                yield (place := f"{where}.{name}[{index}]"), part
                yield from _parts(place, part)


def check_media(body: Body, modalities: Collection[str]) -> None:
    """Raise a RequestError for a part that is none of the model's `modalities`; without any, they are unknown."""
    for field, where, part in parts_in(body) if modalities else ():
        kind = part.get("type")
        wanted = _MODALITIES.get(kind) if isinstance(kind, str) else None
        if wanted and wanted not in modalities:
            message = f"`{where}` is of the type `{kind}`, but this model takes only {', '.join(modalities)}."
            raise RequestError(message, field)


class PdfReader:
    """Puts the text of PDFs in their place, read in processes whose time and memory are limited."""

    def __init__(self) -> None:
        # A conversation sends its documents again with each turn.
        self._texts = BoundedWork(_text_of, partial(UnavailableError, _BUSY, None, None, 5), cache_size=8)

    async def read(self, body: Body) -> bool:
        """Replace the PDFs in a body; returns whether there were any. Raises RequestError and UnavailableError."""
        found = [(field, where, part, pdf) for field, where, part in parts_in(body) if (pdf := _pdf_in(where, part))]
        for field, where, part, (holder, data) in found:
            try:
                text = await self._texts.answer(data)
            except RequestError as error:
                raise RequestError(f"`{where}` {error}.", field) from None
            if part["type"] == "document":
                part["source"] = {"type": "text", "data": text}
                continue
            name = holder.get("filename")
            part.clear()
            part["type"] = "text" if field == "messages" else "input_text"
            part["text"] = f"Title: {name}\n\n{text}" if isinstance(name, str) else text
        return bool(found)


async def _text_of(pdf: str) -> str:
    encoded = pdf.removeprefix(_DATA_URL).encode(errors="replace")
    answer = (await answer_of(_WORKER, encoded, timeout_s=_TIMEOUT_S)).decode()
    if not answer.startswith("+"):
        # No output: the kernel ended the process.
        raise RequestError(answer[1:] or "takes too long to read")
    return answer[1:]


def _pdf_in(where: str, part: Body) -> tuple[Body, str] | None:
    """The object with a PDF in a part, and the PDF; None for other parts."""
    kind = part.get("type")
    outer, inner = _PDFS.get(kind, ("", "")) if isinstance(kind, str) else ("", "")
    holder = part.get(outer) if outer else part
    fields = holder if isinstance(holder, dict) else {}
    if not inner or (kind == "document" and (fields.get("type"), fields.get("media_type")) != _IS_PDF):
        return None
    if not isinstance(fields.get(inner), str):
        name = ".".join(filter(None, (where, outer, inner)))
        message = f"`{name}` must be a PDF in Base64; this service keeps and fetches no files."
        raise RequestError(message, where.split("[")[0])
    return fields, fields[inner]
