"""Files that a command writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rayllm.errors import RayLLMError


class FileError(RayLLMError):
    """A file cannot be written."""


def write_files(texts: Mapping[Path, str], force: bool = False) -> None:
    """Write files, all of them or none; their folders are made.

    Args:
        texts: what is to stand in each.
        force: put them in the place of files that are there.

    Raises:
        FileError: one is there already, or its folder cannot be written.
    """
    there = [str(path) for path in texts if path.exists()]
    if there and not force:
        raise FileError(f"{', '.join(there)}: already there.\nhint: --force writes anew, or choose another place.")
    written: dict[Path, str] = {}
    try:
        for path, text in texts.items():
            written[path] = _beside(path, text)
        for path, temporary in list(written.items()):
            os.replace(temporary, path)
            del written[path]
    except OSError as error:
        raise FileError(f"{error.filename or path}: cannot be written: {error.strerror}.") from None
    finally:
        for temporary in written.values():
            os.unlink(temporary)


def _beside(path: Path, text: str) -> str:
    """A temporary file in the same folder; its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    return file.name
