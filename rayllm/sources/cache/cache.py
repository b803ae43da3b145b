"""Snapshots on a node's disk: fetched once for all processes, evicted when space runs out."""

import errno
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from rich.filesize import decimal

from rayllm.core.errors import SourceError
from rayllm.core.settings import settings
from rayllm.sources.cache import locks
from rayllm.sources.cache.entry import FILES, JOURNAL, REMOVED, Entry
from rayllm.sources.errors import ChangedError
from rayllm.sources.stores import Snapshot, Store
from rayllm.sources.transfer import DownloadOptions, Progress
from rayllm.sources.transfer.download import download

logger = logging.getLogger(__name__)

# How often a store may change while it is fetched.
_MAX_CHANGES = 3
# Share of a download's size to leave free on the disk.
_HEADROOM = 0.02
# Seconds after which the time of a folder's last change tells two changes apart, on any file system.
_SETTLED_S = 5.0
# Suffix of the folder of a download.
_PART = ".part"


class Cache:
    """Snapshots in `<root>/<store>/<snapshot id>/`, shared by all processes of a node.

    An entry that was acquired or fetched is not evicted until it is released as often, or the process ends.

    Args:
        max_bytes: most bytes of the cache; 0 is the disk's size.
    """

    def __init__(self, root: Path, max_bytes: int = 0) -> None:
        self._root = root
        self._max_bytes = max_bytes
        # By entry in use: the descriptor of its shared lock, and the number of users in this process.
        self._descriptors: dict[Path, int] = {}
        self._users: Counter[Path] = Counter()
        # Bytes of a store's entries, by its folder and the time of the last change.
        self._sizes: dict[tuple[Path, float], int] = {}
        self._lock = threading.Lock()

    def holds(self, uri: str, snapshot_id: str) -> bool:
        """Whether the cache has all of a snapshot."""
        return Entry(self._store_folder(uri) / snapshot_id).is_complete()

    def acquire(self, uri: str, snapshot_id: str) -> Entry | None:
        """Acquire the entry of a snapshot; None if the entry is missing or incomplete."""
        entry = Entry(self._store_folder(uri) / snapshot_id)
        if not entry.root.is_dir():
            return None
        with self._lock:
            if entry.root not in self._descriptors:
                with self._writing():
                    self._descriptors[entry.root] = locks.share(entry.use_lock)
            self._users[entry.root] += 1
        if entry.is_complete():
            return entry
        self.release(entry)
        return None

    def acquire_latest(self, uri: str, selection: str) -> Entry | None:
        """Acquire the entry fetched last for a selection of a store's files; None if the entry is gone."""
        try:
            snapshot_id = self._latest_file(uri, selection).read_text().strip()
        except OSError:
            return None
        return self.acquire(uri, snapshot_id)

    def release(self, entry: Entry) -> None:
        with self._lock:
            self._users[entry.root] -= 1
            if not self._users[entry.root]:
                del self._users[entry.root]
                os.close(self._descriptors.pop(entry.root))

    def fetch(
        self,
        store: Store,
        list_snapshot: Callable[[], Snapshot],
        selection: str,
        progress: Progress,
        options: DownloadOptions,
    ) -> tuple[Entry, Snapshot]:
        """Acquire the entry of a store's current content, downloading what the cache lacks. Raises SourceError.

        Args:
            list_snapshot: lists the store and selects files; called again if a file changed meanwhile.
            selection: name of what was selected, for `acquire_latest`; must be valid in a file name.
        """
        for _ in range(_MAX_CHANGES):
            snapshot = list_snapshot()
            try:
                entry = self.acquire(snapshot.uri, snapshot.id)
                entry = entry or self._download(store, snapshot, selection, progress, options)
            except ChangedError as error:
                logger.warning("%s Listing it again.", error.message)
                continue
            self._record_latest(snapshot, selection)
            return entry, snapshot
        message = f"{store.uri} changed {_MAX_CHANGES} times while it was fetched; try again when it is complete."
        raise SourceError(message)

    def _download(
        self, store: Store, snapshot: Snapshot, selection: str, progress: Progress, options: DownloadOptions
    ) -> Entry:
        folder = self._store_folder(snapshot.uri)
        staging = folder / f"{selection}{_PART}"
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
        with locks.exclusive(staging.with_suffix(".lock"), _wait_log(snapshot.uri, options.deadline_s)):
            if entry := self.acquire(snapshot.uri, snapshot.id):
                return entry
            try:
                _remove_stale_files(staging / FILES, {item.path for item in snapshot.items})
                self._make_room(snapshot, staging)
                checksums = download(store, snapshot, staging / FILES, staging / JOURNAL, progress, options)
                Entry(folder / snapshot.id).publish(staging, snapshot, checksums)
            except OSError as error:
                raise self._write_error(error, snapshot, staging) from None
            if entry := self.acquire(snapshot.uri, snapshot.id):
                return entry
        raise SourceError(f"{snapshot.uri} was removed from {self._root} just after it was fetched.")

    def _make_room(self, snapshot: Snapshot, staging: Path) -> None:
        """Evict the least recently used entries until the snapshot fits; raises SourceError without enough room."""
        staging.mkdir(parents=True, exist_ok=True)
        required = max(0, snapshot.size - _disk_usage(staging))
        required += round(required * _HEADROOM)
        if self._free(self._used()) >= required:
            return
        self._remove_leftovers(staging)
        used = self._used()
        if (free := self._free(used)) >= required:
            return
        for entry in sorted(_entries(self._root.glob("*/*")), key=_last_use):
            size = entry.size
            if self._evict(entry):
                used -= size
                free = self._free(used)
            if free >= required:
                return
        shutil.rmtree(staging, ignore_errors=True)
        key = "RAYLLM_CACHE_MAX_GB or RAYLLM_CACHE_DIR" if self._max_bytes else "RAYLLM_CACHE_DIR"
        raise SourceError(
            f"{snapshot.uri} needs {decimal(required)}, but {self._root} has room for "
            f"{decimal(max(0, free))} and nothing unused to remove; free some, or see {key}."
        )

    def _free(self, used: int) -> int:
        """Bytes that may still be written, given the cache's size."""
        free = shutil.disk_usage(self._root).free
        return min(free, self._max_bytes - used) if self._max_bytes else free

    def size(self) -> int:
        """Bytes of all complete entries. Counts only the stores whose entries have changed since the last call."""
        sizes = {}
        for folder in self._root.glob("*"):
            with suppress(OSError):
                key = folder, folder.stat().st_mtime
                sizes[key] = self._sizes[key] if key in self._sizes else _size(folder.glob("*"))
        # Two changes shortly after another may leave the same time.
        settled = time.time() - _SETTLED_S
        self._sizes = {key: size for key, size in sizes.items() if key[1] < settled}
        return sum(sizes.values())

    def _used(self) -> int:
        """Bytes of the cache and of all downloads in progress; 0 without a limit, which needs no count."""
        if not self._max_bytes:
            return 0
        return _size(self._root.glob("*/*")) + sum(map(_disk_usage, self._root.glob(f"*/*{_PART}")))

    def _remove_leftovers(self, staging: Path) -> None:
        """Remove what killed processes left behind: abandoned downloads, and entries partly removed."""
        for trash in self._root.glob(f"*/*{REMOVED}"):
            shutil.rmtree(trash, ignore_errors=True)
        for other in self._root.glob(f"*/*{_PART}"):
            if other != staging:
                with locks.try_exclusive(other.with_suffix(".lock")) as is_abandoned:
                    if is_abandoned:
                        shutil.rmtree(other, ignore_errors=True)

    def _evict(self, entry: Entry) -> bool:
        """Remove an entry that is not in use. Returns whether the entry was removed."""
        with locks.try_exclusive(entry.use_lock) as is_unused:
            if is_unused:
                logger.info("Evicting %s from the cache: it is the least recently used.", entry.uri)
                entry.remove()
            return is_unused

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"the cache {self._root} cannot be written: {error.strerror}; see RAYLLM_CACHE_DIR."
            raise SourceError(message) from None

    def _write_error(self, error: OSError, snapshot: Snapshot, staging: Path) -> SourceError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # An unfinished download would keep the disk full for all other programs.
            shutil.rmtree(staging, ignore_errors=True)
            return SourceError(f"{snapshot.uri}: the disk of {self._root} is full; see RAYLLM_CACHE_DIR.")
        return SourceError(f"{snapshot.uri} cannot be written to {self._root}: {error.strerror}; see RAYLLM_CACHE_DIR.")

    def _record_latest(self, snapshot: Snapshot, selection: str) -> None:
        path = self._latest_file(snapshot.uri, selection)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            temporary.write_text(snapshot.id)
            temporary.rename(path)
        except OSError as error:
            # The entry itself is usable.
            logger.warning("%s cannot be written: %s.", path, error.strerror)

    def _latest_file(self, uri: str, selection: str) -> Path:
        return self._store_folder(uri) / f"{selection}.last"

    def _store_folder(self, uri: str) -> Path:
        """The folder of one store: a readable name, and a digest against collisions."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", uri).strip("-.")[-80:]
        return self._root / f"{readable}-{sha256(uri.encode()).hexdigest()[:12]}"


@cache
def node_cache() -> Cache:
    """This node's cache, configured by the `RAYLLM_*` variables."""
    return Cache(settings().cache_path / "sources", int(settings().cache_max_gb * 1e9))


def _wait_log(uri: str, deadline_s: float | None) -> Callable[[float], None]:
    """Log, at growing intervals, that another process is fetching; raise once the deadline has passed."""
    logged_s = 0.0

    def log(waited_s: float) -> None:
        nonlocal logged_s
        if deadline_s and waited_s > deadline_s:
            raise SourceError(f"{uri} was not fetched by another process within {deadline_s:g} s.")
        if waited_s > 2 * logged_s:
            logged_s = max(5.0, waited_s)
            logger.info("Waiting for another process on this node to fetch %s.", uri)

    return log


def _remove_stale_files(folder: Path, paths: set[str]) -> None:
    """Remove files of an earlier attempt that are not in `paths`, and all links, since downloads create none."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path.relative_to(folder).as_posix() not in paths):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _disk_usage(folder: Path) -> int:
    """Bytes on disk below a folder, while other processes may remove some."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _entries(folders: Iterable[Path]) -> list[Entry]:
    """The complete entries among the content of stores' folders."""
    # Folders with a dot in their name are being downloaded or removed.
    return [entry for entry in map(Entry, folders) if "." not in entry.root.name and entry.manifest.is_file()]


def _size(folders: Iterable[Path]) -> int:
    return sum(entry.size for entry in _entries(folders))


def _last_use(entry: Entry) -> float:
    try:
        return entry.use_lock.stat().st_mtime
    except OSError:
        return 0.0
