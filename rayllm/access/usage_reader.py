"""Sums of the usage ledger, read in slices."""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from rayllm.access.usage import GROUPS, Totals, UsageEntry, today
from rayllm.core.errors import StorageError, UnavailableError
from rayllm.sources.storage import Folder

logger = logging.getLogger(__name__)

SLICE_BYTES = 256 * 1024
"""Bytes read at once, about a thousand entries."""
# Seconds that one call reads.
_LONGEST_S = 3.0
# File of the sums of a past day, in the day's folder. Names with a leading dot hold no entries.
_SUMS = ".sums.json"


@dataclass
class _FileSums:
    """Sums of the first `size` bytes of a file, by key."""

    size: int = 0
    by_key: dict[str, Totals] = field(default_factory=dict)

    def totals(self, key: str | None) -> Totals:
        """The sums of a key; None is of all keys."""
        if key is not None:
            return dict(self.by_key.get(key, {}))
        return {group: counts for totals in self.by_key.values() for group, counts in totals.items()}


class UsageReader:
    """Sums of all processes' entries. Reads each entry once, and saves the sums of past days."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._days: dict[str, dict[str, _FileSums]] = {}
        # Days of which sums are to be saved once they are over.
        self._unsaved: set[str] = set()
        self._lock = asyncio.Lock()
        # The event loop itself keeps only weak references.
        self._reading: set[asyncio.Task[dict[str, Totals]]] = set()

    async def totals(self, since: str, until: str = "", key: str | None = None) -> dict[str, Totals]:
        """Sums by file.

        Args:
            since, until: the first day and the last, as 2026-01-31; until today by default.
            key: name of the key; None is all keys.

        Raises:
            UnavailableError: there is too much to read for one call; the next call continues.
            StorageError: the ledger cannot be read.
        """
        # Shielded: a cancelled call must not leave a thread reading beside the next call.
        reading = asyncio.create_task(self._totals(since, until or today(), key))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return await asyncio.shield(reading)

    async def _totals(self, since: str, until: str, key: str | None) -> dict[str, Totals]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST_S
        async with self._lock:
            kept = await asyncio.to_thread(self._folder.folders)
            for gone in self._days.keys() - set(kept):
                del self._days[gone]
            days = [day for day in kept if since <= day <= until]
            for day in days:
                slices = self._read(day)
                # Each slice in a thread, so that other tasks run in between.
                while await asyncio.to_thread(next, slices, None):
                    if loop.time() > deadline:
                        message = f"The ledger of usage is still being read, up to {day} so far; try again."
                        raise UnavailableError(message, None, "usage_unavailable", 1)
            files = [(f"{day}/{name}", sums) for day in days for name, sums in self._days.get(day, {}).items()]
            return {name: totals for name, sums in files if (totals := sums.totals(key))}

    def _read(self, day: str) -> Iterator[int]:
        """Read the new entries of a day; yields the bytes of each slice."""
        infos = [info for info in self._folder.entries(day) if info.base_name.endswith(".jsonl")]
        if day not in self._days:
            self._days[day] = self._saved(day)
        files = self._days[day]
        for info in infos:
            sums = files.setdefault(info.base_name, _FileSums())
            if info.size > sums.size:
                for size in self._read_file(f"{day}/{info.base_name}", sums):
                    self._unsaved.add(day)
                    yield size
        if day in self._unsaved and day < today():
            self._save(day)

    def _read_file(self, path: str, sums: _FileSums) -> Iterator[int]:
        rest = b""
        with self._folder.open(path, sums.size) as file:
            while block := bytes(file.read(SLICE_BYTES)):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                for line in whole.splitlines():
                    if entry := UsageEntry.parse(line):
                        entry.add_to(sums.by_key.setdefault(entry.key, {}))
                # A line that is being written is read next time.
                sums.size += len(whole) + len(newline)
                yield len(block)

    def _saved(self, day: str) -> dict[str, _FileSums]:
        try:
            files = json.loads(self._folder.read(f"{day}/{_SUMS}"))
            found: dict[str, _FileSums] = {}
            for name, (size, totals) in files.items():
                found[name] = _FileSums(size)
                for group, counts in totals:
                    found[name].by_key.setdefault(group[GROUPS.index("key")], {})[tuple(group)] = counts
            return found
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError, LookupError):
            logger.warning("%s is damaged; the day is read again.", self._folder.address(f"{day}/{_SUMS}"))
            return {}

    def _save(self, day: str) -> None:
        files = {name: [sums.size, list(sums.totals(None).items())] for name, sums in self._days[day].items()}
        try:
            self._folder.write(f"{day}/{_SUMS}", json.dumps(files).encode())
            self._unsaved.discard(day)
        except (StorageError, OSError) as error:
            logger.warning("The sums of %s cannot be saved: %s", day, error)
