"""Write a command's output files atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rayllm.errors import RayLLMError


class FileError(RayLLMError):
    """A file cannot be written."""


def check_writable(path: Path, force: bool) -> None:
    """Check that a file can be written, before a command does work that takes long.

    Raises:
        FileError: the file exists and `force` is not set, or its folder is not writable.
    """
    _check_absent([path], force)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise FileError(f"{path}: cannot be written.")


def write_files(contents: Mapping[Path, str | bytes], force: bool = False) -> None:
    """Write files, all or none; missing folders are created.

    Args:
        contents: content by path; strings are written as UTF-8.
        force: replace existing files.

    Raises:
        FileError: a file exists and `force` is not set, or its folder is not writable.
    """
    _check_absent(contents, force)
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


def _check_absent(paths: Mapping[Path, str | bytes] | list[Path], force: bool) -> None:
    existing = [str(path) for path in paths if path.exists()]
    if existing and not force:
        raise FileError(f"{', '.join(existing)}: already exists.\nhint: --force replaces it, or choose another path.")


def _beside(path: Path, content: str | bytes) -> str:
    """Write a temporary file in the same folder; returns its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.chmod(file.name, 0o644)
    return file.name
