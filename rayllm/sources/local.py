"""A folder of this node's disks, as a place to copy from: what is served must not change under the engine."""

from __future__ import annotations

from pathlib import Path

from rayllm.errors import SourceError
from rayllm.sources.faults import ChangedError
from rayllm.sources.items import Item, Target, checked_path

SCHEME = "file://"


class LocalStore:
    """The files of a folder, without those of folders in it. Links that lead out of `root` are left out.

    Args:
        folder: the folder.
        root: where its links may lead.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self._folder = folder
        self._root = (root or folder).resolve()
        self.where = f"{SCHEME}{folder}"

    def files(self) -> list[Item]:
        """Every file of the folder, at the version that its time tells; none where there is no folder."""
        if not self._folder.is_dir() or not self._is_inside(self._folder):
            return []
        try:
            found = [path for path in self._folder.iterdir() if path.is_file() and self._is_inside(path)]
            return [self._item(path) for path in found]
        except OSError as error:
            raise SourceError(f"{self._folder} cannot be read: {error.strerror}.") from None

    def locate(self, item: Item) -> Target:
        """The file itself, if it is still the one that was listed."""
        try:
            now = self._item(Path(item.key))
        except OSError:
            raise ChangedError(f"{item.key} was removed while it was copied.") from None
        if now != item:
            raise ChangedError(f"{item.key} was replaced while it was copied.")
        return Target(SCHEME + item.key)

    def commit(self) -> str:
        """A folder has no name for its state."""
        return ""

    def _item(self, path: Path) -> Item:
        stat = path.stat()
        relative = checked_path(path.relative_to(self._folder).as_posix(), str(self._folder))
        return Item(relative, str(path), stat.st_size, f"{stat.st_mtime_ns}-{stat.st_ino}")

    def _is_inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self._root)


def read_range(target: Target, start: int, end: int) -> bytes:
    """The bytes [start, end) of a local file.

    Raises:
        ChangedError: it is shorter now.
    """
    with open(target.url.removeprefix(SCHEME), "rb") as file:
        file.seek(start)
        piece = file.read(end - start)
    if len(piece) != end - start:
        raise ChangedError(f"{target.url.removeprefix(SCHEME)} was cut while it was copied.")
    return piece
