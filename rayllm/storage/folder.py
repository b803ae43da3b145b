"""A folder to keep things in."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rayllm.errors import StorageError
from rayllm.storage.filesystem import open_folder

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

_PIECE = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """A file in a folder: its name, its bytes, and when it was written, in seconds since the epoch."""

    name: str
    size: int
    written_at: float


class Folder:
    """A local folder, or one of a bucket. Its methods block, may be called from many threads, and raise StorageError
    where the place cannot be read or written. Paths in it are relative, with slashes, and are trusted.

    Args:
        uri: a path, `s3://bucket/prefix` or `gs://bucket/prefix`. It is looked at when it is first used.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._is_local = "://" not in uri
        self._lock = threading.Lock()
        self._opened: tuple[FileSystem, str] | None = None

    def address(self, path: str) -> str:
        """Where `path` is, for others."""
        return f"{self.uri}/{path}"

    def read(self, path: str) -> bytes:
        """The whole file.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._explained(path, "read"), self.open(path) as file:
            return bytes(file.read())

    def open(self, path: str) -> NativeFile:
        """The file, to be read in pieces and closed.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._explained(path, "read"):
            files, root = self._open()
            return files.open_input_stream(f"{root}/{path}")

    def write(self, path: str, content: bytes | BinaryIO) -> None:
        """Put a file there, in place of one that may be there. Nobody ever sees a part of it.

        Args:
            path: its place.
            content: all of it, or a file to copy from where it stands.
        """
        source = BytesIO(content) if isinstance(content, bytes) else content
        with self._explained(path, "written"):
            files, root = self._open()
            if self._is_local:
                _write_whole(Path(root, path), source)
            else:
                _write_object(files, f"{root}/{path}", source)

    def names(self, path: str) -> list[str]:
        """Names of the files that are directly in the folder `path`, sorted; none where it is missing."""
        from pyarrow.fs import FileSelector, FileType

        with self._explained(path, "listed"):
            files, root = self._open()
            found = files.get_file_info(FileSelector(f"{root}/{path}", allow_not_found=True))
        # What begins with a dot is being written.
        return sorted(i.base_name for i in found if i.type == FileType.File and not i.base_name.startswith("."))

    def entries(self, path: str) -> list[Entry]:
        """The files that are directly in the folder `path`, also those that are being written; none where it is
        missing."""
        from pyarrow.fs import FileSelector, FileType

        with self._explained(path, "listed"):
            files, root = self._open()
            found = files.get_file_info(FileSelector(f"{root}/{path}", allow_not_found=True))
        return [Entry(i.base_name, i.size, i.mtime_ns / 1e9) for i in found if i.type == FileType.File]

    def size(self, path: str) -> int | None:
        """Bytes in the file; None where there is none."""
        from pyarrow.fs import FileType

        with self._explained(path, "read"):
            files, root = self._open()
            info = files.get_file_info(f"{root}/{path}")
        return int(info.size) if info.type == FileType.File else None

    def delete(self, path: str) -> None:
        """Take away a file; nothing happens where there is none."""
        with suppress(FileNotFoundError), self._explained(path, "deleted"):
            files, root = self._open()
            files.delete_file(f"{root}/{path}")

    def delete_folder(self, path: str) -> None:
        """Take away a folder with all that is in it; nothing happens where there is none."""
        from pyarrow.fs import FileType

        with suppress(FileNotFoundError), self._explained(path, "deleted"):
            files, root = self._open()
            # Arrow has another error for this in each kind of store.
            if files.get_file_info(f"{root}/{path}").type == FileType.Directory:
                files.delete_dir(f"{root}/{path}")

    def _open(self) -> tuple[FileSystem, str]:
        with self._lock:
            if self._opened is None:
                self._opened = open_folder(self.uri)
            return self._opened

    @contextmanager
    def _explained(self, path: str, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"{self.address(path)} cannot be {what}: {error}") from None


def _write_whole(path: Path, source: BinaryIO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as target:
            shutil.copyfileobj(source, target, _PIECE)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _write_object(files: FileSystem, path: str, source: BinaryIO) -> None:
    # The object appears when the stream is closed, which Arrow does after a failure as well.
    try:
        with files.open_output_stream(path) as target:
            shutil.copyfileobj(source, target, _PIECE)
    except BaseException:
        with suppress(OSError):
            files.delete_file(path)
        raise


def _sync(folder: Path) -> None:
    """Have the disk keep the folder's names, the new one included."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
