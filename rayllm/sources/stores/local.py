"""Local folders. Their files are copied too, and so cannot change under a running engine."""

from pathlib import Path

from rayllm.core.errors import SourceError
from rayllm.sources.errors import ChangedError
from rayllm.sources.items import Item, Location, checked_path

SCHEME = "file://"


class LocalStore:
    """The files of a folder, without subfolders. Links that lead out of `root` (default: the folder) are ignored."""

    commit = ""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self._folder = folder
        self._root = (root or folder).resolve()
        self.uri = f"{SCHEME}{folder}"

    def files(self) -> list[Item]:
        """List the files, with modification time and inode as version; empty if the folder does not exist."""
        if not self._folder.is_dir() or not self._is_inside(self._folder):
            return []
        try:
            paths = [path for path in self._folder.iterdir() if path.is_file() and self._is_inside(path)]
            return [self._item(path) for path in paths]
        except OSError as error:
            raise SourceError(f"{self._folder} cannot be read: {error.strerror}.") from None

    def locate(self, item: Item) -> Location:
        """The file itself; raises ChangedError if the file changed after the listing."""
        try:
            current = self._item(Path(item.key))
        except OSError:
            raise ChangedError(f"{item.key} was removed while it was copied.") from None
        if current != item:
            raise ChangedError(f"{item.key} was replaced while it was copied.")
        return Location(SCHEME + item.key)

    def _item(self, path: Path) -> Item:
        stat = path.stat()
        relative = checked_path(path.relative_to(self._folder).as_posix(), str(self._folder))
        return Item(relative, str(path), stat.st_size, f"{stat.st_mtime_ns}-{stat.st_ino}")

    def _is_inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self._root)


def read_range(location: Location, start: int, end: int) -> bytes:
    """Read the bytes [start, end) of a local file; raises ChangedError if the file is shorter."""
    with open(location.url.removeprefix(SCHEME), "rb") as file:
        file.seek(start)
        content = file.read(end - start)
    if len(content) != end - start:
        raise ChangedError(f"{location.url.removeprefix(SCHEME)} was truncated while it was copied.")
    return content
