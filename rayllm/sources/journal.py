"""Which parts of an unfinished download are on the disk, for the process that goes on with it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from rayllm.sources.items import Item

_NONE = "none"


class Journal:
    """An append-only file with a line for each part that was written, and one where a file begins anew.

    A killed process leaves whole lines and at most one half, which is left out. What a crashed machine leaves may be
    wrong, since data reaches a disk in any order; so a journal of another boot counts for nothing.

    Args:
        path: the journal's file.
        part_size: bytes of a part; a journal of other parts counts for nothing either.
    """

    def __init__(self, path: Path, part_size: int) -> None:
        self._lock = threading.Lock()
        head = f"{boot_id()} {part_size}"
        lines = path.read_bytes().decode().split("\n") if path.exists() else []
        self._versions: dict[str, str] = {}
        self._done: dict[str, set[str]] = {}
        if lines[:1] == [head]:
            for line in lines[1:-1]:
                self._learn(*line.split(" ", 2))
            # A half line must not become the beginning of the next.
            os.truncate(path, path.stat().st_size - len(lines[-1].encode()))
        else:
            path.write_text(head + "\n")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def has_part(self, item: Item, start: int) -> bool:
        """Whether the part of `item` at `start` was written, at this version of it."""
        return self._versions.get(item.path) == item.version and str(start) in self._done[item.path]

    def begin(self, item: Item) -> None:
        """Parts of this version may be written from now on: those of another count no more."""
        with self._lock:
            if self._versions.get(item.path) != item.version:
                self._write(_NONE, item)

    def forget(self, item: Item) -> None:
        """The file has to be fetched anew."""
        with self._lock:
            self._write(_NONE, item)

    def add_part(self, item: Item, start: int) -> None:
        """The part is written."""
        with self._lock:
            self._write(str(start), item)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, start: str, item: Item) -> None:
        self._learn(start, item.version, item.path)
        os.write(self._file, f"{start} {item.version} {item.path}\n".encode())

    def _learn(self, start: str, version: str, path: str) -> None:
        if start == _NONE or self._versions.get(path) != version:
            self._versions[path], self._done[path] = version, set()
        if start != _NONE:
            self._done[path].add(start)


def boot_id() -> str:
    """Names the time since this machine was started. Source: random(4), /proc/sys/kernel/random/boot_id"""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
