"""The journal of a download: its finished parts, with which another process can resume."""

import os
import threading
from pathlib import Path

from rayllm.sources.items import Item

_RESET = "none"


class Journal:
    """An append-only file: one line per part of `part_size` bytes written, and one per file that starts over.

    A killed process leaves at most one incomplete line, which is ignored. After a crash of the machine, the journal may
    name parts that never reached the disk: a journal of another boot, or with another part size, is discarded.
    """

    def __init__(self, path: Path, part_size: int) -> None:
        self._lock = threading.Lock()
        header = f"{boot_id()} {part_size}"
        lines = path.read_bytes().decode().split("\n") if path.exists() else []
        self._versions: dict[str, str] = {}
        self._parts: dict[str, set[str]] = {}
        if lines[:1] == [header]:
            for line in lines[1:-1]:
                self._apply(*line.split(" ", 2))
            # Drop an incomplete line, or the next one would be appended to it.
            os.truncate(path, path.stat().st_size - len(lines[-1].encode()))
        else:
            path.write_text(header + "\n")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def has_part(self, item: Item, start: int) -> bool:
        """Whether the part at offset `start` was written, for this version of the item."""
        return self._versions.get(item.path) == item.version and str(start) in self._parts[item.path]

    def begin(self, item: Item) -> None:
        """Begin a version of the item, dropping the parts of another version."""
        with self._lock:
            if self._versions.get(item.path) != item.version:
                self._append(_RESET, item)

    def reset(self, item: Item) -> None:
        with self._lock:
            self._append(_RESET, item)

    def add_part(self, item: Item, start: int) -> None:
        with self._lock:
            self._append(str(start), item)

    def close(self) -> None:
        os.close(self._file)

    def _append(self, start: str, item: Item) -> None:
        self._apply(start, item.version, item.path)
        os.write(self._file, f"{start} {item.version} {item.path}\n".encode())

    def _apply(self, start: str, version: str, path: str) -> None:
        if start == _RESET or self._versions.get(path) != version:
            self._versions[path], self._parts[path] = version, set()
        if start != _RESET:
            self._parts[path].add(start)


def boot_id() -> str:
    """Id of the current boot of this machine. Source: random(4), /proc/sys/kernel/random/boot_id"""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
