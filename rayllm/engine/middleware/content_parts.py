"""Parts of messages that vLLM does not read: PDFs become text, and media that the model does not take are refused."""

import base64
import gc
import io
import logging
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from rayllm.core.errors import RequestError, UnavailableError
from rayllm.core.limited_process import call
from rayllm.engine.bounded_work import BoundedWork

Body = dict[str, Any]

# Includes the start of the process, which takes seconds under load.
_TIMEOUT_S = 60.0
_MAX_PDFS = 20
MAX_PAGES = 600
MAX_CHARACTERS = 4_000_000
_BUSY = "Too many PDFs are waiting to be read."
# A part's type → the object in it with a PDF, and the PDF's field.
_PDFS = {"document": ("source", "data"), "file": ("file", "file_data"), "input_file": ("", "file_data")}
_IS_PDF = ("base64", "application/pdf")
# Where messages are, and where these and their parts have parts.
_TURNS = ("messages", "input")
_HOLDERS = ("content", "output", "source")
_MODALITIES = {"image_url": "image", "input_image": "image", "image": "image", "video_url": "video"}
_MODALITIES |= {"audio_url": "audio", "input_audio": "audio"}


def parts_in(holder: Body, names: Collection[str] = _TURNS, where: str = "") -> Iterator[tuple[str, Body]]:
    """The messages and content parts in a request's body, with their places."""
    for name in names:
        value = holder.get(name)
        if isinstance(value, dict):
            yield from parts_in(value, _HOLDERS, f"{where}{name}.")
        for index, part in enumerate(value if isinstance(value, list) else ()):
            if isinstance(part, dict):
                yield (place := f"{where}{name}[{index}]"), part
                yield from parts_in(part, _HOLDERS, f"{place}.")


def _param(where: str) -> str:
    """The field that an error names: the list of messages, or an item of `input`, as errors of other items do."""
    return where.split("." if where.startswith("input") else "[")[0]


def check_media(body: Body, modalities: Collection[str]) -> None:
    """Raise a RequestError for an image, audio or video that the model does not take; empty `modalities` allow all."""
    for where, part in parts_in(body) if modalities else ():
        wanted = _MODALITIES.get(kind := str(part.get("type")))
        if wanted and wanted not in modalities:
            message = f"`{where}` is of the type `{kind}`, but this model takes only {', '.join(modalities)}."
            raise RequestError(message, _param(where))


class PdfReader:
    """Replaces the PDFs in requests by their texts."""

    def __init__(self) -> None:
        # A conversation sends its documents again with each turn.
        self._texts = BoundedWork(_text_of, partial(UnavailableError, _BUSY, None, None, 5), kept=8)

    async def read(self, body: Body) -> bool:
        """Replace the PDFs in a body; returns whether there were any. Raises RequestError and UnavailableError."""
        found = [(where, part, pdf) for where, part in parts_in(body) if (pdf := _pdf_in(where, part))]
        if len(found) > _MAX_PDFS:
            raise RequestError(f"The request has more than {_MAX_PDFS} PDFs.", _param(found[0][0]))
        for where, part, (holder, data) in found:
            try:
                text = await self._texts.answer(data)
            except RequestError as error:
                raise RequestError(f"`{where}`: {error}", _param(where)) from None
            if part["type"] == "document":
                part["source"] = {"type": "text", "data": text}
                continue
            name = holder.get("filename")
            part.clear()
            part["type"] = "text" if where.startswith("messages") else "input_text"
            part["text"] = f"Title: {name}\n\n{text}" if isinstance(name, str) else text
        return bool(found)


async def _text_of(data: str) -> str:
    content = data.removeprefix("data:application/pdf;base64,").encode(errors="replace")
    return await call("This PDF", text_of_pdf, content, timeout_s=_TIMEOUT_S)


def text_of_pdf(encoded: bytes) -> str:
    """The text of a PDF in Base64, with a blank line between pages; raises RequestError."""
    from pypdf import PdfReader, errors

    gc.enable()
    # pypdf reports each fault that it overlooks.
    logging.disable()
    texts = list[str]()
    try:
        reader = PdfReader(io.BytesIO(base64.b64decode(encoded, validate=True)))
        if len(reader.pages) > MAX_PAGES:
            raise RequestError(f"This PDF has more than {MAX_PAGES} pages.")
        for page in reader.pages:
            texts.append(page.extract_text().strip())
            if sum(map(len, texts)) > MAX_CHARACTERS:
                raise RequestError(f"This PDF has more than {MAX_CHARACTERS:,} characters.")
    except (RequestError, MemoryError):
        raise
    except Exception as error:
        fault = "encrypted" if isinstance(error, errors.FileNotDecryptedError) else "no PDF in Base64 that can be read"
        raise RequestError(f"This is {fault}.") from None
    if not any(texts):
        raise RequestError("This PDF has no text; send its pages as images to a model that takes images.")
    return "\n\n".join(filter(None, texts))


def _pdf_in(where: str, part: Body) -> tuple[Body, str] | None:
    """The object with a PDF in a part, and the PDF; None for other parts."""
    outer, inner = _PDFS.get(kind := str(part.get("type")), ("", ""))
    holder = part.get(outer) if outer else part
    fields = holder if isinstance(holder, dict) else {}
    if not inner or (kind == "document" and (fields.get("type"), fields.get("media_type")) != _IS_PDF):
        return None
    if not isinstance(fields.get(inner), str):
        name = ".".join(filter(None, (where, outer, inner)))
        message = f"`{name}` must be a PDF in Base64; this service keeps and fetches no files."
        raise RequestError(message, _param(where))
    return fields, fields[inner]
