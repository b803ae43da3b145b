"""All files of a snapshot into one folder: many ranges at a time, each file checked when it is whole."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rayllm.errors import SourceError
from rayllm.sources.checksum import OWN, checksum_of
from rayllm.sources.http import Client
from rayllm.sources.items import Checksum, Item, Snapshot, Target
from rayllm.sources.journal import Journal
from rayllm.sources.local import SCHEME, read_range
from rayllm.sources.progress import Progress
from rayllm.sources.store import Store

logger = logging.getLogger(__name__)

PART_SIZE = 32 * 1024 * 1024
"""Bytes of a part: what is fetched by one request, and what a killed download loses at most of each thread."""


@dataclass(frozen=True)
class Limits:
    """How hard a download tries: threads, tries in a row, and seconds in all (None is no limit)."""

    threads: int = 16
    tries: int = 6
    deadline_s: float | None = None
    stall_s: float = 20.0


class _StoppedError(Exception):
    """Another part failed; this one need not go on."""


def download(
    store: Store, snapshot: Snapshot, folder: Path, journal: Path, progress: Progress, limits: Limits
) -> dict[str, Checksum]:
    """Have every file of `snapshot` in `folder`; the checksum of each by its path.

    Parts that `journal` has are not fetched again.

    Raises:
        ChangedError: an object was replaced meanwhile; a new snapshot is needed.
        SourceError: a file cannot be had or is damaged; the message names it.
    """
    return _Download(store, snapshot, folder, Journal(journal, PART_SIZE), progress, limits).run()


@dataclass
class _File:
    item: Item
    path: Path
    missing: int = 0
    target: Target | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Download:
    def __init__(
        self, store: Store, snapshot: Snapshot, folder: Path, journal: Journal, progress: Progress, limits: Limits
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._folder = folder
        self._journal = journal
        self._progress = progress
        self._limits = limits
        stall_s = min(limits.stall_s, limits.deadline_s or limits.stall_s)
        self._client = Client(limits.threads, stall_s, limits.tries, self._pause)
        self._stop = threading.Event()
        self._ends_at = time.monotonic() + limits.deadline_s if limits.deadline_s else float("inf")
        self._checksums: dict[str, Checksum] = {}

    def run(self) -> dict[str, Checksum]:
        try:
            files = [self._prepare(item) for item in self._snapshot.items]
            self._progress.start(self._snapshot.where, self._snapshot.size)
            try:
                self._fetch_all(files)
            finally:
                self._progress.finish()
        finally:
            self._client.close()
            self._journal.close()
        return self._checksums

    def _prepare(self, item: Item) -> _File:
        """Take the file's room now: a disk that is too small is known before the first byte comes."""
        path = self._folder / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path) as descriptor:
            if os.fstat(descriptor).st_size != item.size:
                # What the journal knows is of another file: that one was removed, or is of another version.
                self._journal.forget(item)
            self._journal.begin(item)
            os.ftruncate(descriptor, item.size)
            if item.size:
                os.posix_fallocate(descriptor, 0, item.size)
        return _File(item, path)

    def _fetch_all(self, files: list[_File]) -> None:
        with ThreadPoolExecutor(self._limits.threads, "fetch") as threads:
            try:
                jobs = [threads.submit(self._fetch, file, starts) for file, starts in self._work(files)]
                done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                # Nothing is left to do, or it is in vain: a part failed, or this thread was interrupted.
                self._stop.set()
                threads.shutdown(wait=False, cancel_futures=True)
        for job in [job for job in done if job.exception()]:
            if not isinstance(job.exception(), _StoppedError):
                job.result()

    def _work(self, files: list[_File]) -> list[tuple[_File, list[int]]]:
        """What is to be done, a job each: a part, or for a file that only has to be checked, none."""
        work: list[tuple[_File, list[int]]] = []
        for file in files:
            starts = [start for start in _starts(file.item) if not self._journal.has_part(file.item, start)]
            file.missing = len(starts)
            there = file.item.size - sum(_length(file.item, start) for start in starts)
            self._progress.advance(there)
            work += [(file, [start]) for start in starts] or [(file, [])]
        return work

    def _fetch(self, file: _File, starts: list[int]) -> None:
        for start in starts:
            self._fetch_part(file, start)
        with file.lock:
            file.missing -= len(starts)
            whole = file.missing == 0
        if whole:
            self._check(file)

    def _fetch_part(self, file: _File, start: int) -> None:
        with _opened(file.path) as descriptor:
            self._write_part(file, start, descriptor)
        self._journal.add_part(file.item, start)

    def _write_part(self, file: _File, start: int, descriptor: int) -> None:
        def write(piece: bytes, at: int) -> None:
            self._go_on()
            _write(descriptor, piece, at)
            self._progress.advance(len(piece))

        end = start + _length(file.item, start)
        target = self._locate(file, anew=False)
        if target.url.startswith(SCHEME):
            # Asked again for each part: a file that was changed meanwhile is no more the one that was listed.
            write(read_range(self._store.locate(file.item), start, end), start)
            self._store.locate(file.item)
        else:
            self._client.fetch(lambda anew: self._locate(file, anew), file.item, start, end, write)

    def _go_on(self) -> None:
        """Raise where there is no use in going on."""
        if self._stop.is_set():
            raise _StoppedError
        if time.monotonic() > self._ends_at:
            raise SourceError(f"{self._snapshot.where} was not fetched within {self._limits.deadline_s:g} s.")

    def _pause(self, seconds: float) -> None:
        """Wait before another try, as long as there is use in it."""
        self._stop.wait(min(seconds, max(0.0, self._ends_at - time.monotonic())))
        self._go_on()

    def _locate(self, file: _File, anew: bool) -> Target:
        """The file's address, asked for once and again where it was refused."""
        self._go_on()
        with file.lock:
            if file.target is None or anew:
                file.target = self._store.locate(file.item)
            return file.target

    def _check(self, file: _File) -> None:
        """Compare the whole file with the checksum that the place gives, fetching it once more where they differ."""
        item = file.item
        expected = item.checksum or self._locate(file, anew=False).checksum
        for again in (True, False):
            found = checksum_of(file.path, expected.algorithm if expected else OWN)
            if expected is None or found == expected:
                break
            self._progress.advance(-item.size)
            self._journal.forget(item)
            if not again:
                raise SourceError(
                    f"{item.key} is damaged: its {expected.algorithm} is {found.value}, not {expected.value} as "
                    f"{self._snapshot.where} says, twice in a row."
                )
            logger.warning("%s came damaged; fetching it again.", item.key)
            for start in _starts(item):
                self._fetch_part(file, start)
        self._checksums[item.path] = found


def _starts(item: Item) -> range:
    return range(0, item.size, PART_SIZE)


def _length(item: Item, start: int) -> int:
    return min(PART_SIZE, item.size - start)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The file, made if there is none. A link that somebody put there is not followed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, piece: bytes, at: int) -> None:
    written = os.pwrite(descriptor, piece, at)
    while written < len(piece):
        written += os.pwrite(descriptor, piece[written:], at + written)
