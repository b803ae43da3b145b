"""Uploads the usage that processes of this node have written, for a ledger in a bucket.

The lines of a file become objects of about a megabyte, named by the offset of their first byte. A longer object
replaces the last one until that is full. So a repeated upload, by any process, writes the same objects again, and
nothing is counted twice.
"""

import asyncio
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from rayllm.access.usage import today
from rayllm.access.usage_ledger import UsageLedger, oldest_day
from rayllm.core.errors import StorageError
from rayllm.sources.cache.locks import try_exclusive
from rayllm.sources.storage import Folder

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 1024 * 1024
"""Least bytes of a full object."""
_PERIOD_S = 10.0


class UsageUpload:
    """Uploads the usage of this node while no other process does. All methods block."""

    def __init__(self, ledger: UsageLedger) -> None:
        self._spool = ledger.folder
        self._bucket = Folder(ledger.uri)
        # Sizes of the objects of a day, and where the first object that is not full begins, by file.
        self._sizes: dict[str, dict[str, int]] = {}
        self._starts: dict[Path, int] = {}
        self._fault = ""
        self._cleaned = ""

    def run(self) -> None:
        """Upload new entries, unless another process does."""
        try:
            with try_exclusive(self._spool / "upload.lock") as is_alone:
                if not is_alone:
                    self._sizes.clear()
                    return
                for path in sorted(self._spool.glob("*/*.jsonl")):
                    self._upload(path)
                self._delete_expired()
            self._fault = ""
        except (StorageError, OSError) as error:
            self._sizes.clear()
            if (fault := str(error)) != self._fault:
                logger.error("The usage ledger cannot be uploaded, and waits in %s: %s", self._spool, fault)
                self._fault = fault

    def _upload(self, path: Path) -> None:
        day = path.parent.name
        if day not in self._sizes:
            self._sizes[day] = {info.base_name: info.size for info in self._bucket.entries(day)}
        sizes = self._sizes[day]
        with path.open("rb") as file:
            while segment := _segment(file.fileno(), start := self._starts.get(path, 0)):
                name = f"{path.stem}.{start:012}.jsonl"
                if sizes.get(name) != len(segment):
                    self._bucket.write(f"{day}/{name}", segment)
                    sizes[name] = len(segment)
                if len(segment) < SEGMENT_BYTES:
                    break
                self._starts[path] = start + len(segment)
            if day < today():
                self._delete(path, file.fileno(), start + len(segment))

    def _delete(self, path: Path, file: int, uploaded: int) -> None:
        """Delete the file of a past day, unless a process has the file open or has written more."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        size = os.fstat(file).st_size
        if uploaded == size or b"\n" not in os.pread(file, size - uploaded, uploaded):
            path.unlink()
            self._starts.pop(path, None)
            with suppress(OSError):
                path.parent.rmdir()

    def _delete_expired(self) -> None:
        if self._cleaned != (day := today()):
            for old in self._bucket.folders():
                if old < oldest_day(day):
                    self._bucket.delete_folder(old)
            self._cleaned = day
            self._sizes.clear()


async def keep_uploading(upload: UsageUpload) -> None:
    """Upload new entries every few seconds."""
    while True:
        await asyncio.to_thread(upload.run)
        await asyncio.sleep(_PERIOD_S)


def _segment(file: int, start: int) -> bytes:
    """Whole lines from an offset on, enough for an object if there are."""
    data = os.pread(file, 2 * SEGMENT_BYTES, start)
    end = data.find(b"\n", SEGMENT_BYTES - 1) + 1
    return data[: end or data.rfind(b"\n") + 1]
