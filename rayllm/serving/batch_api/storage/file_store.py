"""The files that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from rayllm.errors import ObjectNotFoundError, StorageError
from rayllm.serving.batch_api.objects.file import File
from rayllm.serving.batch_api.objects.ids import FILE, is_id, new_id
from rayllm.serving.batch_api.objects.page import Cursor, Page
from rayllm.storage import Folder

if TYPE_CHECKING:
    from pyarrow import NativeFile


# Content without a description is being brought, or was left behind by a process that died.
_BRINGING_S = 6 * 3600


@dataclass(frozen=True)
class Usage:
    """How many files are kept, and their bytes; also of those that are being brought."""

    files: int
    bytes: int


class FileStore:
    """Files in a folder. Its methods block, and raise StorageError where the folder cannot be read or written.

    Args:
        folder: the folder.
        now: tells the time, in seconds since the epoch.
    """

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def put(
        self,
        content: BinaryIO,
        size: int,
        filename: str,
        purpose: str,
        lifetime_s: int | None = None,
        file_id: str | None = None,
    ) -> File:
        """Keep a file.

        Args:
            content: what is in it.
            size: how much that is, in bytes.
            filename: its name, for people.
            purpose: what it is for.
            lifetime_s: seconds that it is kept; None is until it is deleted.
            file_id: its id, where that was given away before.
        """
        made = int(self._now())
        file = File(
            id=file_id or new_id(FILE),
            bytes=size,
            created_at=made,
            filename=filename,
            purpose=purpose,
            expires_at=None if lifetime_s is None else made + lifetime_s,
        )
        try:
            self._folder.write(f"contents/{file.id}", content)
            if file.expires_at is not None:
                self._folder.write(f"expiring/{file.expires_at}.{file.id}", b"")
            # Last, since a file is there when this is.
            self._folder.write(f"files/{file.id}.json", file.model_dump_json().encode())
        except StorageError:
            with suppress(StorageError):
                self._folder.delete(f"contents/{file.id}")
            raise
        return file

    def usage(self) -> Usage:
        """How much is kept."""
        contents = self._folder.entries("contents")
        return Usage(len(contents), sum(entry.size for entry in contents))

    def get(self, file_id: str) -> File:
        """A file's description.

        Raises:
            ObjectNotFoundError: there is no such file, or no more.
        """
        file = self._find(file_id) if is_id(FILE, file_id) else None
        if file is None:
            raise ObjectNotFoundError(f"There is no file `{file_id[:100]}`.", "file_id")
        return file

    def open(self, file_id: str) -> NativeFile:
        """What is in a file, to be read in pieces and closed.

        Raises:
            ObjectNotFoundError: there is no such file, or no more.
        """
        try:
            return self._folder.open(f"contents/{self.get(file_id).id}")
        except FileNotFoundError:
            raise ObjectNotFoundError(f"There is no file `{file_id}` any more.", "file_id") from None

    def address(self, file_id: str) -> str:
        """Where the content of a file lies: a path or the address of an object."""
        return self._folder.address(f"contents/{file_id}")

    def page(self, cursor: Cursor, purpose: str | None) -> Page[File]:
        """A part of the list of all files, or of those for one purpose."""

        def read(file_id: str) -> File | None:
            file = self._find(file_id)
            return file if file is not None and purpose in (None, file.purpose) else None

        return Page.read([name.removesuffix(".json") for name in self._folder.names("files")], cursor, read)

    def delete(self, file_id: str) -> None:
        """Delete a file.

        Raises:
            ObjectNotFoundError: there is no such file, or no more.
        """
        self._delete(self.get(file_id).id)

    def sweep(self, used: Callable[[], Collection[str]]) -> None:
        """Delete the files whose time is over, but for those with an id in `used()`, and what was never finished."""
        self._delete_unfinished()
        due = [name for name in self._folder.names("expiring") if int(name.partition(".")[0]) <= self._now()]
        kept = used() if due else ()
        for name in due:
            file_id = name.partition(".")[2]
            if file_id not in kept:
                self._delete(file_id)
                self._folder.delete(f"expiring/{name}")

    def _find(self, file_id: str) -> File | None:
        try:
            file = File.model_validate_json(self._folder.read(f"files/{file_id}.json"))
        except FileNotFoundError:
            return None
        return None if file.expires_at is not None and file.expires_at <= self._now() else file

    def _delete_unfinished(self) -> None:
        old = [e.name for e in self._folder.entries("contents") if e.written_at < time.time() - _BRINGING_S]
        described = {name.removesuffix(".json") for name in self._folder.names("files")} if old else set()
        for name in set(old) - described:
            self._folder.delete(f"contents/{name}")

    def _delete(self, file_id: str) -> None:
        self._folder.delete(f"files/{file_id}.json")
        self._folder.delete(f"contents/{file_id}")
