"""Folders to read from and write to: local, `s3://` or `gs://`, with whole-file reads and atomic writes."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rayllm.config import BucketSource
from rayllm.core.errors import SourceError, StorageError
from rayllm.sources.buckets import open_bucket

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

_BLOCK = 1024 * 1024


def open_folder(uri: str) -> tuple[FileSystem, str]:
    """Open a folder as a pyarrow file system, for Ray Data as well; returns also its path. Raises StorageError.

    Buckets use the same credentials and endpoints as models (docs/sources.md). Creates neither folder nor bucket.
    """
    if "://" not in uri:
        # Only processes that store something need pyarrow.
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(Path(uri).expanduser().absolute())
    source = BucketSource(bucket_uri=uri)
    try:
        filesystem = open_bucket(source).filesystem()
    except SourceError as error:
        raise StorageError(error.message) from None
    return filesystem, source.bucket_uri.partition("://")[2].strip("/")


class Folder:
    """A folder: a path, `s3://bucket/prefix` or `gs://bucket/prefix`, opened at first use.

    All methods block, are thread-safe, and raise StorageError if the folder cannot be read or written. Paths are
    relative, with slashes, and trusted.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._is_local = "://" not in uri
        self._lock = threading.Lock()
        self._opened: tuple[FileSystem, str] | None = None

    def address(self, path: str) -> str:
        """Absolute path or URI of a file."""
        return f"{self.uri}/{path}"

    def read(self, path: str) -> bytes:
        """Read a whole file; raises FileNotFoundError."""
        with self._access(path, "read"), self.open(path) as file:
            return bytes(file.read())

    def open(self, path: str, offset: int = 0) -> NativeFile:
        """Open a file for streaming from `offset` bytes on, to be closed by the caller. Raises FileNotFoundError."""
        with self._access(path, "read") as (files, full_path):
            if not offset:
                return files.open_input_stream(full_path)
            file = files.open_input_file(full_path)
            file.seek(offset)
            return file

    def write(self, path: str, content: bytes | BinaryIO, mode: int = 0o666) -> None:
        """Create or replace a file atomically: readers never see half a file.

        A new file on disk gets `mode`, less the process's umask; an existing file keeps its mode and owner.
        """
        source = BytesIO(content) if isinstance(content, bytes) else content
        with self._access(path, "written") as (files, full_path):
            if self._is_local:
                _write_file(Path(full_path), source, mode)
            else:
                _write_object(files, full_path, source)

    def names(self, path: str) -> list[str]:
        """Sorted names of the files in the folder `path`; empty for a missing folder."""
        # Names with a leading dot are files being written.
        return sorted(info.base_name for info in self.entries(path) if not info.base_name.startswith("."))

    def folders(self, path: str = "") -> list[str]:
        """Sorted names of the folders in the folder `path`; empty for a missing folder."""
        return sorted(info.base_name for info in self._listed(path) if not info.is_file)

    def entries(self, path: str) -> list[FileInfo]:
        """Files in the folder `path`, including files being written; empty for a missing folder."""
        return [info for info in self._listed(path) if info.is_file]

    def _listed(self, path: str) -> list[FileInfo]:
        from pyarrow.fs import FileSelector

        with self._access(path, "listed") as (files, full_path):
            infos: list[FileInfo] = files.get_file_info(FileSelector(full_path.rstrip("/"), allow_not_found=True))
            return infos

    def size(self, path: str) -> int | None:
        """Size of a file in bytes; None for a missing file."""
        with self._access(path, "read") as (files, full_path):
            info = files.get_file_info(full_path)
        return int(info.size) if info.is_file else None

    def delete(self, path: str) -> None:
        """Delete a file; a missing file is no error."""
        with suppress(FileNotFoundError), self._access(path, "deleted") as (files, full_path):
            files.delete_file(full_path)

    def delete_folder(self, path: str) -> None:
        """Delete a folder and its content; a missing folder is no error."""
        from pyarrow.fs import FileType

        with suppress(FileNotFoundError), self._access(path, "deleted") as (files, full_path):
            # delete_dir raises a different error for a missing folder on each file system.
            if files.get_file_info(full_path).type == FileType.Directory:
                files.delete_dir(full_path)

    @contextmanager
    def _access(self, path: str, operation: str) -> Iterator[tuple[FileSystem, str]]:
        """The file system and a path in it, for an operation whose OSErrors become StorageError."""
        try:
            with self._lock:
                self._opened = files, root = self._opened or open_folder(self.uri)
            yield files, f"{root}/{path}"
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"{self.address(path)} cannot be {operation}: {error}") from None


def _write_file(path: Path, source: BinaryIO, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        before = path.stat() if path.exists() else None
        mode = stat.S_IMODE(before.st_mode) if before else mode
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as target:
            if before:
                with suppress(PermissionError):
                    os.fchown(target.fileno(), before.st_uid, before.st_gid)
                os.fchmod(target.fileno(), mode)
            shutil.copyfileobj(source, target, _BLOCK)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # Makes the rename durable.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_object(files: FileSystem, path: str, source: BinaryIO) -> None:
    # The object is created when the stream is closed, and pyarrow closes it after a failure as well.
    try:
        with files.open_output_stream(path) as target:
            shutil.copyfileobj(source, target, _BLOCK)
    except BaseException:
        with suppress(OSError):
            files.delete_file(path)
        raise
