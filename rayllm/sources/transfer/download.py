"""Downloads all files of a snapshot into a folder: many ranges at once, and every complete file is verified."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rayllm.core.errors import SourceError
from rayllm.sources.items import Checksum, Item, Location, Snapshot, Store
from rayllm.sources.stores.local import SCHEME, read_range
from rayllm.sources.transfer.checksums import DEFAULT, file_checksum
from rayllm.sources.transfer.journal import Journal
from rayllm.sources.transfer.options import DownloadOptions, Progress
from rayllm.sources.transfer.ranges import RangeClient

logger = logging.getLogger(__name__)

PART_SIZE = 32 * 1024 * 1024
"""Bytes per request, and most bytes that each thread of a killed download loses."""


class _StoppedError(Exception):
    """The download stops because another part failed."""


def download(
    store: Store, snapshot: Snapshot, folder: Path, journal: Path, progress: Progress, options: DownloadOptions
) -> dict[str, Checksum]:
    """Download every file of `snapshot` into `folder`, except for the parts that `journal` lists.

    Returns:
        The checksum of each file, by path.

    Raises:
        ChangedError: a file was replaced meanwhile; list the store again.
        SourceError: a file cannot be fetched or is damaged; the message names it.
    """
    return _Download(store, snapshot, folder, Journal(journal, PART_SIZE), progress, options).run()


@dataclass
class _File:
    item: Item
    path: Path
    missing_parts: int = 0
    location: Location | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False)
class _Download:
    _store: Store
    _snapshot: Snapshot
    _folder: Path
    _journal: Journal
    _progress: Progress
    _options: DownloadOptions

    def __post_init__(self) -> None:
        self._client = RangeClient(self._options, self._pause)
        self._stop = threading.Event()
        self._ends_at = time.monotonic() + (self._options.deadline_s or float("inf"))
        self._checksums: dict[str, Checksum] = {}

    def run(self) -> dict[str, Checksum]:
        try:
            files = [self._allocate(item) for item in self._snapshot.items]
            self._progress.start(self._snapshot.uri, self._snapshot.size)
            try:
                self._fetch_all(files)
            finally:
                self._progress.finish()
        finally:
            self._client.close()
            self._journal.close()
        return self._checksums

    def _allocate(self, item: Item) -> _File:
        """Allocate the file's space, so that a full disk is detected before the first request."""
        path = self._folder / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path) as descriptor:
            if os.fstat(descriptor).st_size != item.size:
                # The journal describes a file that was removed, or another version of it.
                self._journal.reset(item)
            self._journal.begin(item)
            os.ftruncate(descriptor, item.size)
            if item.size:
                os.posix_fallocate(descriptor, 0, item.size)
        return _File(item, path)

    def _fetch_all(self, files: list[_File]) -> None:
        with ThreadPoolExecutor(self._options.threads, "fetch") as threads:
            try:
                jobs = [threads.submit(self._fetch, file, start) for file, start in self._plan(files)]
                done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                # All jobs are done, one has failed, or this thread was interrupted.
                self._stop.set()
                threads.shutdown(wait=False, cancel_futures=True)
        for job in [job for job in done if job.exception()]:
            if not isinstance(job.exception(), _StoppedError):
                job.result()

    def _plan(self, files: list[_File]) -> list[tuple[_File, int | None]]:
        """The jobs: one for each missing part, and one without a part for each file that is only to be verified."""
        jobs: list[tuple[_File, int | None]] = []
        for file in files:
            missing = [start for start in _part_starts(file.item) if not self._journal.has_part(file.item, start)]
            file.missing_parts = len(missing)
            self._progress.advance(file.item.size - sum(_part_length(file.item, start) for start in missing))
            jobs += [(file, start) for start in missing or (None,)]
        return jobs

    def _fetch(self, file: _File, start: int | None) -> None:
        if start is not None:
            self._fetch_part(file, start)
            with file.lock:
                file.missing_parts -= 1
                if file.missing_parts:
                    return
        self._verify(file)

    def _fetch_part(self, file: _File, start: int) -> None:
        def write(chunk: bytes, offset: int) -> None:
            self._check_stopped()
            written = os.pwrite(descriptor, chunk, offset)
            while written < len(chunk):
                written += os.pwrite(descriptor, chunk[written:], offset + written)
            self._progress.advance(len(chunk))

        end = start + _part_length(file.item, start)
        with _opened(file.path) as descriptor:
            location = self._locate(file, refresh=False)
            if location.url.startswith(SCHEME):
                # The URL of a local file has no version, so the file is checked before and after each part.
                write(read_range(self._store.locate(file.item), start, end), start)
                self._store.locate(file.item)
            else:
                self._client.fetch(lambda refresh: self._locate(file, refresh), file.item, start, end, write)
        self._journal.add_part(file.item, start)

    def _check_stopped(self) -> None:
        """Raise if another part has failed or the deadline has passed."""
        if self._stop.is_set():
            raise _StoppedError
        if time.monotonic() > self._ends_at:
            raise SourceError(f"{self._snapshot.uri} was not fetched within {self._options.deadline_s:g} s.")

    def _pause(self, seconds: float) -> None:
        """Wait before a retry, unless the download stops."""
        self._stop.wait(min(seconds, max(0.0, self._ends_at - time.monotonic())))
        self._check_stopped()

    def _locate(self, file: _File, refresh: bool) -> Location:
        """The file's location, looked up again only if the last location was refused."""
        self._check_stopped()
        with file.lock:
            if file.location is None or refresh:
                file.location = self._store.locate(file.item)
            return file.location

    def _verify(self, file: _File) -> None:
        """Compare the file with the store's checksum. A damaged file is fetched once more."""
        item = file.item
        expected = item.checksum or self._locate(file, refresh=False).checksum
        for is_last in (False, True):
            checksum = file_checksum(file.path, expected.algorithm if expected else DEFAULT)
            if expected is None or checksum == expected:
                break
            self._progress.advance(-item.size)
            self._journal.reset(item)
            if is_last:
                raise SourceError(
                    f"{item.key} is damaged: its {expected.algorithm} is {checksum.value}, not {expected.value} as "
                    f"{self._snapshot.uri} says, twice in a row."
                )
            logger.warning("%s is damaged; fetching it again.", item.key)
            for start in _part_starts(item):
                self._fetch_part(file, start)
        self._checksums[item.path] = checksum


def _part_starts(item: Item) -> range:
    return range(0, item.size, PART_SIZE)


def _part_length(item: Item, start: int) -> int:
    return min(PART_SIZE, item.size - start)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file for writing, created if missing. A symbolic link is refused."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
