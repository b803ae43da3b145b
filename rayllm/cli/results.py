"""Files of results that take long to come by: their place is looked at before, and they are written whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rayllm.cli.files import FileError


def check_place(path: Path, force: bool) -> None:
    """Refuse a place that could not be written to afterwards.

    Raises:
        FileError: a file is there already and `force` does not say to replace it, or its folder cannot be written.
    """
    if path.exists() and not force:
        raise FileError(f"{path}: is there already.\nhint: --force replaces it.")
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise FileError(f"{path}: cannot be written.")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or leave the place as it is.

    Raises:
        FileError: it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}.") from None
