"""Tables, output files and signals of commands."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from rayllm.core.errors import RayLLMError

_MAX_NAMES = 10
_interrupted = False


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of columns under their headings."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def first_names(names: Sequence[str]) -> str:
    """The first ten names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


class FileError(RayLLMError):
    """A file cannot be written."""


def write_files(contents: Mapping[Path, str], force: bool = False) -> None:
    """Write files, all or none; missing folders are created, and the text is UTF-8.

    Raises FileError if a file exists and `force` is not set, or its folder is not writable.
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


def _beside(path: Path, content: str) -> str:
    """Write a temporary file in the same folder; returns its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content.encode())
    os.chmod(file.name, 0o644)
    return file.name


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on SIGINT, and on SIGTERM, which service managers send.

    Call it again after `ray.init`, which installs its own handler for SIGTERM. Python ignores exceptions that handlers
    raise in callbacks and finalizers, of which `ray.init` runs many: the second call raises what was lost, unprinted.
    """
    print_lost = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else print_lost(lost)
    if _interrupted:
        raise KeyboardInterrupt
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def was_interrupted() -> bool:
    """Whether SIGINT or SIGTERM has come since the first call of `interrupt_on_signals`."""
    return _interrupted


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt
