"""One snapshot in the cache: its files and a manifest of them, published by one rename."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayllm.sources.checksum import checksum_of
from rayllm.sources.items import Checksum, Snapshot
from rayllm.sources.journal import boot_id

FILES = "files"
JOURNAL = "journal"
# Ends the name of an entry that is being removed.
REMOVED = ".removed"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A folder of the cache: `manifest.json`, and below `files` what was fetched."""

    root: Path

    @property
    def files(self) -> Path:
        """The folder with the files, as they are to be served."""
        return self.root / FILES

    @property
    def use_lock(self) -> Path:
        """Shared by everybody who uses the entry; its time is that of the last use."""
        return self.root.with_name(self.root.name + ".use")

    @property
    def size(self) -> int:
        """Bytes on the disk, as the manifest says; 0 for none."""
        return sum(file["size"] for file in (self._manifest() or {"files": {}})["files"].values())

    @property
    def where(self) -> str:
        """The place that it came from."""
        return str((self._manifest() or {"where": self.root.name})["where"])

    @property
    def commit(self) -> str:
        """The hub's name of the content; empty for other places."""
        return str((self._manifest() or {"commit": ""})["commit"])

    def is_whole(self) -> bool:
        """Whether it was published and every file is as it was.

        The content is read only where the machine was started anew before all of it had reached the disk.
        """
        manifest = self._manifest()
        if manifest is None:
            return False
        for name, file in manifest["files"].items():
            path = self.files / name
            if not path.is_file() or path.stat().st_size != file["size"]:
                return False
        if manifest["settled"] or manifest["boot"] == boot_id():
            return True
        if not all(_is_as_said(self.files / name, file) for name, file in manifest["files"].items()):
            return False
        # It was read from the disk, so it is there.
        self._write(self.root, {**manifest, "boot": boot_id(), "settled": True})
        return True

    def publish(self, staging: Path, snapshot: Snapshot, checksums: Mapping[str, Checksum]) -> None:
        """Make the whole of `staging` this entry at once."""
        files = {
            item.path: {"size": item.size, checksums[item.path].algorithm: checksums[item.path].value}
            for item in snapshot.items
        }
        manifest = {"where": snapshot.where, "commit": snapshot.commit, "boot": boot_id(), "settled": False}
        self._write(staging, {**manifest, "files": files})
        shutil.rmtree(self.root, ignore_errors=True)
        staging.rename(self.root)
        (self.root / JOURNAL).unlink(missing_ok=True)
        threading.Thread(target=self._settle, name="settle", daemon=True).start()

    def remove(self) -> None:
        """Take it out of the cache at once, then off the disk."""
        trash = self.root.with_name(self.root.name + REMOVED)
        shutil.rmtree(trash, ignore_errors=True)
        try:
            self.root.rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def _settle(self) -> None:
        """Have it all on the disk, in the background: an engine can begin to load from memory meanwhile."""
        try:
            for path in [path for path in self.files.rglob("*") if path.is_file()]:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            if manifest := self._manifest():
                self._write(self.root, {**manifest, "settled": True})
        except OSError:
            # It was removed meanwhile; or the disk is in trouble, and the next start will read all of it.
            return

    def _manifest(self) -> dict[str, Any] | None:
        try:
            manifest: dict[str, Any] = json.loads((self.root / _MANIFEST).read_text())
        except (OSError, ValueError):
            return None
        return manifest

    @staticmethod
    def _write(root: Path, manifest: dict[str, Any]) -> None:
        temporary = root / f"{_MANIFEST}.{os.getpid()}.{threading.get_ident()}"
        temporary.write_text(json.dumps(manifest, indent=1))
        temporary.rename(root / _MANIFEST)


def _is_as_said(path: Path, file: dict[str, Any]) -> bool:
    return all(checksum_of(path, name).value == value for name, value in file.items() if name != "size")
