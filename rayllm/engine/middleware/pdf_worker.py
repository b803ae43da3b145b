"""The subprocess that reads one PDF: Base64 from stdin; writes to stdout `+` and the text, or `-` and a fault."""

import base64
import io
import logging
import sys

from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError

from rayllm.core.errors import RequestError
from rayllm.core.limited_process import limit_process

MAX_PAGES = 600
MAX_CHARACTERS = 4_000_000
_CPU_S = 20
_MEMORY_BYTES = 1 << 30


def main() -> None:
    limit_process(_CPU_S, _MEMORY_BYTES)
    # pypdf reports each fault that it overlooks.
    logging.disable()
    sys.stdout.buffer.write(_answer(sys.stdin.buffer.read()).encode(errors="replace"))


def _answer(encoded: bytes) -> str:
    try:
        return "+" + text_of_pdf(base64.b64decode(encoded, validate=True))
    except RequestError as error:
        return f"-{error}"
    except FileNotDecryptedError:
        return "-is encrypted"
    except MemoryError:
        return "-takes too much memory to read"
    except Exception:
        return "-is no PDF in Base64 that can be read"


def text_of_pdf(content: bytes) -> str:
    """The text of a PDF, with a blank line between pages. Raises RequestError, or an error of pypdf."""
    reader = PdfReader(io.BytesIO(content))
    if len(reader.pages) > MAX_PAGES:
        raise RequestError(f"has more than {MAX_PAGES} pages")
    texts, characters = list[str](), 0
    for page in reader.pages:
        texts.append(page.extract_text().strip())
        characters += len(texts[-1])
        if characters > MAX_CHARACTERS:
            raise RequestError(f"has more than {MAX_CHARACTERS:,} characters")
    if not characters:
        raise RequestError("has no text, only pictures: send its pages as images to a model that takes images")
    return "\n\n".join(filter(None, texts))


if __name__ == "__main__":
    main()
