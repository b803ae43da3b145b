"""Files that a command writes: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rayllm.errors import RayLLMError


class FileError(RayLLMError):
    """A file cannot be written."""


def check_place(path: Path, force: bool) -> None:
    """Refuse a place that could not be written to afterwards: for what takes long to come by.

    Raises:
        FileError: a file is there already and `force` does not say to replace it, or its folder cannot be written.
    """
    _check_absent([path], force)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise FileError(f"{path}: cannot be written.")


def write_files(contents: Mapping[Path, str | bytes], force: bool = False) -> None:
    """Write files, all of them or none; their folders are made.

    Args:
        contents: what is to stand in each; a text is written as UTF-8.
        force: put them in the place of files that are there.

    Raises:
        FileError: one is there already, or its folder cannot be written.
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
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise FileError(f"{', '.join(there)}: already there.\nhint: --force writes anew, or choose another place.")


def _beside(path: Path, content: str | bytes) -> str:
    """A temporary file in the same folder; its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.chmod(file.name, 0o644)
    return file.name
