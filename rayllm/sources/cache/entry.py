"""One snapshot in the cache: its files and a manifest, published by a single rename."""

import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayllm.sources.items import Checksum, Snapshot
from rayllm.sources.transfer.checksums import file_checksum
from rayllm.sources.transfer.journal import boot_id

FILES = "files"
JOURNAL = "journal"
# Suffix of an entry that is being removed.
REMOVED = ".removed"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A folder of the cache: `manifest.json`, and the snapshot below `files`."""

    root: Path

    @property
    def files(self) -> Path:
        """The folder to serve from."""
        return self.root / FILES

    @property
    def manifest(self) -> Path:
        """The file that a published entry has."""
        return self.root / _MANIFEST

    @property
    def use_lock(self) -> Path:
        """Lock file that all users of the entry share, with the time of the last use."""
        return self.root.with_name(self.root.name + ".use")

    @property
    def size(self) -> int:
        """Bytes on disk according to the manifest; 0 without a manifest."""
        return sum(file["size"] for file in (self._manifest() or {"files": {}})["files"].values())

    @property
    def uri(self) -> str:
        """URI of the store that the files were fetched from."""
        return str((self._manifest() or {"where": self.root.name})["where"])

    @property
    def commit(self) -> str:
        """The hub's commit; empty for other stores."""
        return str((self._manifest() or {"commit": ""})["commit"])

    def is_complete(self) -> bool:
        """Whether the entry was published and all files have their size.

        Verifies checksums only if the machine rebooted before all data was known to be on disk.
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
        if not all(_matches(self.files / name, file) for name, file in manifest["files"].items()):
            return False
        # The content was just read from the disk, so it is there.
        self._write(self.root, {**manifest, "boot": boot_id(), "settled": True})
        return True

    def publish(self, staging: Path, snapshot: Snapshot, checksums: Mapping[str, Checksum]) -> None:
        """Turn the folder `staging` into this entry, atomically."""
        files = {
            item.path: {"size": item.size, checksums[item.path].algorithm: checksums[item.path].value}
            for item in snapshot.items
        }
        manifest = {"where": snapshot.uri, "commit": snapshot.commit, "boot": boot_id(), "settled": False}
        self._write(staging, {**manifest, "files": files})
        shutil.rmtree(self.root, ignore_errors=True)
        staging.rename(self.root)
        (self.root / JOURNAL).unlink(missing_ok=True)
        threading.Thread(target=self._settle, name="settle", daemon=True).start()

    def remove(self) -> None:
        """Remove the entry from the cache atomically, then delete the files."""
        trash = self.root.with_name(self.root.name + REMOVED)
        shutil.rmtree(trash, ignore_errors=True)
        try:
            self.root.rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def _settle(self) -> None:
        """Write all files to the disk (fsync), in the background while an engine already loads the files."""
        try:
            for path in [path for path in self.files.rglob("*") if path.is_file()]:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            if manifest := self._manifest():
                self._write(self.root, {**manifest, "settled": True})
        except OSError:
            # The entry was removed meanwhile, or the disk fails and the next boot verifies all files.
            return

    def _manifest(self) -> dict[str, Any] | None:
        try:
            manifest: dict[str, Any] = json.loads(self.manifest.read_text())
        except (OSError, ValueError):
            return None
        return manifest

    @staticmethod
    def _write(root: Path, manifest: dict[str, Any]) -> None:
        temporary = root / f"{_MANIFEST}.{os.getpid()}.{threading.get_ident()}"
        temporary.write_text(json.dumps(manifest, indent=1))
        temporary.rename(root / _MANIFEST)


def _matches(path: Path, file: dict[str, Any]) -> bool:
    try:
        return all(file_checksum(path, name).value == value for name, value in file.items() if name != "size")
    except ImportError:  # a CRC-64 that was written where rayllm[crc64] was installed
        return False
