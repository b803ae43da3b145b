"""Write a command's output files atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rayllm.errors import RayLLMError


class FileError(RayLLMError):
    """A file cannot be written."""


def write_files(contents: Mapping[Path, str | bytes], force: bool = False) -> None:
    """Write files, all or none; missing folders are created.

    Args:
        contents: content by path; strings are written as UTF-8.
        force: replace existing files.

    Raises:
        FileError: a file exists and `force` is not set, or its folder is not writable.
    """
    existing = [str(path) for path in contents if path.exists()]
    if existing and not force:
        raise FileError(f"{', '.join(existing)}: already exists.\nhint: --force replaces it, or choose another path.")
    written: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            written[path] = _beside(path, content)
        for path, temporary in list(written.items()):
            os.replace(temporary, path)
            del written[path]
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}.") from None
    finally:
        for temporary in written.values():
            os.unlink(temporary)


def _beside(path: Path, content: str | bytes) -> str:
    """Write a temporary file in the same folder; returns its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.chmod(file.name, 0o644)
    return file.name
