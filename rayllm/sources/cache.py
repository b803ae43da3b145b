"""The cache of one node: what was fetched, once for all processes, within the room that it may take."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from rayllm.errors import SourceError
from rayllm.sources import lock
from rayllm.sources.download import Limits, download
from rayllm.sources.entry import FILES, JOURNAL, REMOVED, Entry
from rayllm.sources.faults import ChangedError
from rayllm.sources.items import Snapshot
from rayllm.sources.progress import Progress, in_bytes
from rayllm.sources.store import Store

logger = logging.getLogger(__name__)

_CHANGES = 3
# Left free on the disk beside what is fetched, as a share of it.
_SPARE = 0.02
# Ends the name of a folder that is being fetched into.
_PART = ".part"


class Cache:
    """Snapshots on this node's disk: `<root>/<place>/<snapshot id>/`.

    Args:
        root: its folder; every process of the node gives the same one.
        max_bytes: the room it may take; 0 is as much as the disk has.
    """

    def __init__(self, root: Path, max_bytes: int = 0) -> None:
        self._root = root
        self._max_bytes = max_bytes
        # Of each entry in use, the open lock, and how often it was had and not released.
        self._locks: dict[Path, int] = {}
        self._uses: Counter[Path] = Counter()
        self._lock = threading.Lock()

    def find(self, where: str, snapshot_id: str) -> Entry | None:
        """The entry of a snapshot, if it is whole.

        It is in use from now on, until it is released as often as it was had, or the process ends.
        """
        entry = Entry(self._place(where) / snapshot_id)
        if not entry.root.is_dir():
            return None
        with self._lock:
            if entry.root not in self._locks:
                self._locks[entry.root] = self._share(entry)
            self._uses[entry.root] += 1
        if entry.is_whole():
            return entry
        self.release(entry)
        return None

    def release(self, entry: Entry) -> None:
        """One that had the entry uses it no more; where nobody does, it stays until its room is needed."""
        with self._lock:
            self._uses[entry.root] -= 1
            if not self._uses[entry.root]:
                del self._uses[entry.root]
                os.close(self._locks.pop(entry.root))

    def recall(self, where: str, selection: str) -> Entry | None:
        """The entry that was had last for a selection of a place's files, if it is whole and still there."""
        try:
            name = self._reference(where, selection).read_text().strip()
        except OSError:
            return None
        return self.find(where, name)

    def have(
        self, store: Store, choose: Callable[[], Snapshot], selection: str, progress: Progress, limits: Limits
    ) -> tuple[Entry, Snapshot]:
        """The entry of what a place holds now, fetched if it is not there.

        Args:
            store: the place.
            choose: lists the place and chooses the files; asked again where one changed meanwhile.
            selection: names the choice, for `recall`: a word that a file may be named by.
            progress: told of a download.
            limits: how hard it tries.

        Raises:
            SourceError: it cannot be had; the message says why.
        """
        for _ in range(_CHANGES):
            snapshot = choose()
            try:
                entry = self.find(snapshot.where, snapshot.id)
                entry = entry or self._fetch(store, snapshot, selection, progress, limits)
            except ChangedError as error:
                logger.warning("%s Listing it again.", error.message)
                continue
            self._remember(snapshot, selection)
            return entry, snapshot
        message = f"{store.where} changed {_CHANGES} times while it was fetched; try again when it is complete."
        raise SourceError(message)

    def _fetch(self, store: Store, snapshot: Snapshot, selection: str, progress: Progress, limits: Limits) -> Entry:
        place = self._place(snapshot.where)
        staging = place / f"{selection}{_PART}"
        self._make_folder(place)
        with lock.exclusive(_lock_of(staging), _Waiting(snapshot, limits)):
            if found := self.find(snapshot.where, snapshot.id):
                return found
            try:
                _keep_only(staging / FILES, {item.path for item in snapshot.items})
                self._make_room(snapshot, staging)
                checksums = download(store, snapshot, staging / FILES, staging / JOURNAL, progress, limits)
                Entry(place / snapshot.id).publish(staging, snapshot, checksums)
            except OSError as error:
                raise self._unwritable(error, snapshot, staging) from None
            if used := self.find(snapshot.where, snapshot.id):
                return used
        raise SourceError(f"{snapshot.where} was removed from {self._root} just after it was fetched.")

    def _make_room(self, snapshot: Snapshot, staging: Path) -> None:
        """Remove what was not used for longest until the snapshot fits.

        Raises:
            SourceError: it cannot fit; the message says how much is missing.
        """
        staging.mkdir(parents=True, exist_ok=True)
        need = max(0, snapshot.size - _blocks(staging))
        need += round(need * _SPARE)
        if self._free(self._taken()) >= need:
            return
        self._sweep(staging)
        taken = self._taken()
        if (free := self._free(taken)) >= need:
            return
        for entry in sorted(self._entries(), key=_last_use):
            size = entry.size
            if self._remove_unused(entry):
                taken -= size
                free = self._free(taken)
            if free >= need:
                return
        shutil.rmtree(staging, ignore_errors=True)
        key = "RAYLLM_CACHE_MAX_GB or RAYLLM_CACHE_DIR" if self._max_bytes else "RAYLLM_CACHE_DIR"
        raise SourceError(
            f"{snapshot.where} needs {in_bytes(need)}, but {self._root} has room for {in_bytes(max(0, free))} and "
            f"nothing unused to remove; free some, or see {key}."
        )

    def _free(self, taken: int) -> int:
        """Bytes that may still be written, where the cache takes so many."""
        free = shutil.disk_usage(self._root).free
        return min(free, self._max_bytes - taken) if self._max_bytes else free

    def _taken(self) -> int:
        """Bytes of all entries, and of what is being fetched by anybody. Not counted where there is no limit."""
        if not self._max_bytes:
            return 0
        return sum(entry.size for entry in self._entries()) + sum(map(_blocks, self._root.glob(f"*/*{_PART}")))

    def _sweep(self, own: Path) -> None:
        """Remove what killed processes left: downloads that nobody goes on with, and entries half removed."""
        for trash in self._root.glob(f"*/*{REMOVED}"):
            shutil.rmtree(trash, ignore_errors=True)
        for staging in self._root.glob(f"*/*{_PART}"):
            if staging != own:
                with lock.unused(_lock_of(staging)) as is_unused:
                    if is_unused:
                        shutil.rmtree(staging, ignore_errors=True)

    def _remove_unused(self, entry: Entry) -> bool:
        with lock.unused(entry.use_lock) as is_unused:
            if is_unused:
                logger.info("Removing %s from the cache: it was not used for longest.", entry.where)
                entry.remove()
            return is_unused

    def _entries(self) -> list[Entry]:
        # A name with a dot is no snapshot's: it is being fetched or removed.
        found = self._root.glob("*/*/manifest.json")
        return [Entry(manifest.parent) for manifest in found if "." not in manifest.parent.name]

    def _share(self, entry: Entry) -> int:
        try:
            return lock.share(entry.use_lock)
        except OSError as error:
            raise self._unusable(error) from None

    def _make_folder(self, place: Path) -> None:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> SourceError:
        return SourceError(f"the cache {self._root} cannot be written: {error.strerror}; see RAYLLM_CACHE_DIR.")

    def _unwritable(self, error: OSError, snapshot: Snapshot, staging: Path) -> SourceError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # What is there already would only keep the disk full for everybody else.
            shutil.rmtree(staging, ignore_errors=True)
            return SourceError(f"{snapshot.where}: the disk of {self._root} is full; see RAYLLM_CACHE_DIR.")
        return SourceError(
            f"{snapshot.where} cannot be written to {self._root}: {error.strerror}; see RAYLLM_CACHE_DIR."
        )

    def _remember(self, snapshot: Snapshot, selection: str) -> None:
        reference = self._reference(snapshot.where, selection)
        temporary = reference.with_name(f"{reference.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            temporary.write_text(snapshot.id)
            temporary.rename(reference)
        except OSError as error:
            # What was fetched is there all the same.
            logger.warning("%s cannot be written: %s.", reference, error.strerror)

    def _reference(self, where: str, selection: str) -> Path:
        return self._place(where) / f"{selection}.last"

    def _place(self, where: str) -> Path:
        """The folder of one place: its name for people, and a digest that tells alike ones apart."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", where).strip("-.")[-80:]
        return self._root / f"{readable}-{sha256(where.encode()).hexdigest()[:12]}"


class _Waiting:
    """Says from time to time that another process fetches; ends the wait when its time is up."""

    def __init__(self, snapshot: Snapshot, limits: Limits) -> None:
        self._where = snapshot.where
        self._limit_s = limits.deadline_s
        self._told_s = 0.0

    def __call__(self, waited_s: float) -> None:
        if self._limit_s and waited_s > self._limit_s:
            raise SourceError(f"{self._where} was not fetched by another process within {self._limit_s:g} s.")
        if waited_s > 2 * self._told_s:
            self._told_s = max(5.0, waited_s)
            logger.info("Waiting for another process on this node to fetch %s.", self._where)


def _keep_only(folder: Path, paths: set[str]) -> None:
    """Remove what an earlier try left of files that are no more wanted, and every link: nobody of us makes any."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path.relative_to(folder).as_posix() not in paths):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _lock_of(staging: Path) -> Path:
    """Held by who fetches into `staging`."""
    return staging.with_suffix(".lock")


def _blocks(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk; others may remove some meanwhile."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.lstat().st_blocks * 512
    return found


def _last_use(entry: Entry) -> float:
    try:
        return entry.use_lock.stat().st_mtime
    except OSError:
        return 0.0
