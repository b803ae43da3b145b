"""Store of files in a folder."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from rayllm.access import ANYONE, Caller
from rayllm.core.errors import ObjectNotFoundError, StorageError
from rayllm.serving.batch_api.objects import FILE, File, is_id, new_id
from rayllm.serving.batch_api.page import Cursor, Page, TenantCache
from rayllm.sources.storage import Folder

if TYPE_CHECKING:
    from pyarrow import NativeFile

# Seconds after which content without a description is stale: its upload was never completed.
_UPLOAD_S = 6 * 3600


class Usage(NamedTuple):
    """Number and bytes of stored files, uploads in progress included."""

    files: int
    bytes: int


class FileStore:
    """Files in a folder. All methods block, and raise StorageError if the folder cannot be read or written."""

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now
        self._tenants = TenantCache()

    def put(
        self,
        content: BinaryIO,
        size: int,
        filename: str,
        purpose: str,
        lifetime_s: int | None = None,
        file_id: str | None = None,
        tenant: str = "",
    ) -> File:
        """Store a file.

        Args:
            lifetime_s: seconds until the file expires; None for never.
            file_id: id of the file, if it was assigned before.
        """
        created_at = int(self._now())
        file = File(
            id=file_id or new_id(FILE),
            bytes=size,
            created_at=created_at,
            filename=filename,
            purpose=purpose,
            expires_at=None if lifetime_s is None else created_at + lifetime_s,
            tenant=tenant,
        )
        try:
            self._folder.write(f"contents/{file.id}", content)
            if file.expires_at is not None:
                self._folder.write(f"expiring/{file.expires_at}.{file.id}", b"")
            # Last: a file exists once its description does.
            self._folder.write(f"files/{file.id}.json", file.model_dump_json().encode())
        except StorageError:
            with suppress(StorageError):
                self._folder.delete(f"contents/{file.id}")
            raise
        return file

    def usage(self) -> Usage:
        contents = self._folder.entries("contents")
        return Usage(len(contents), sum(entry.size for entry in contents))

    def get(self, file_id: str, caller: Caller = ANYONE) -> File:
        """Get the description of a file. Raises ObjectNotFoundError if the caller has no such file, or not any more."""
        file = self._find(file_id) if is_id(FILE, file_id) else None
        if file is None or not caller.may_see(file.tenant):
            raise ObjectNotFoundError(f"There is no file `{file_id[:100]}`.", "file_id")
        return file

    def open(self, file_id: str) -> "NativeFile":
        """Open the content of a file, for the caller to close. Raises ObjectNotFoundError for a missing file."""
        try:
            return self._folder.open(f"contents/{self.get(file_id).id}")
        except FileNotFoundError:
            raise ObjectNotFoundError(f"There is no file `{file_id}` any more.", "file_id") from None

    def address(self, file_id: str) -> str:
        return self._folder.address(f"contents/{file_id}")

    def page(self, cursor: Cursor, purpose: str | None, caller: Caller = ANYONE) -> Page[File]:
        """A page of the list of the caller's files, optionally for one purpose."""

        def find(file_id: str) -> File | None:
            file = self._find(file_id)
            return file if file is not None and purpose in (None, file.purpose) else None

        return self._tenants.page(self._folder.names("files"), cursor, caller, find)

    def delete(self, file_id: str) -> None:
        """Delete a file. Raises ObjectNotFoundError if the file does not exist, or has expired."""
        self._delete(self.get(file_id).id)

    def sweep(self, used: Callable[[], Collection[str]]) -> None:
        """Delete unfinished uploads, and expired files except those with an id in `used()`."""
        oldest_ns = (time.time() - _UPLOAD_S) * 1e9
        old = [info.base_name for info in self._folder.entries("contents") if info.mtime_ns < oldest_ns]
        described = {name.removesuffix(".json") for name in self._folder.names("files")} if old else set()
        for name in set(old) - described:
            self._folder.delete(f"contents/{name}")
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
        self._tenants.add(file_id, file.tenant)
        return None if file.expires_at is not None and file.expires_at <= self._now() else file

    def _delete(self, file_id: str) -> None:
        self._folder.delete(f"files/{file_id}.json")
        self._folder.delete(f"contents/{file_id}")
