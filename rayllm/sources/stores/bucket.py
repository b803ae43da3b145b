"""Prefixes of buckets."""

from copy import copy
from dataclasses import replace
from typing import Self

from rayllm.config import BucketSource
from rayllm.sources.buckets import open_bucket
from rayllm.sources.items import Item, Location, checked_path


class BucketStore:
    """The objects below one prefix of a bucket. Raises SourceError if credentials or options cannot be used."""

    commit = ""

    def __init__(self, source: BucketSource) -> None:
        self.uri = source.bucket_uri.rstrip("/")
        self._prefix = self.uri.split("://", 1)[1].partition("/")[2]
        self._bucket = open_bucket(source)

    def files(self) -> list[Item]:
        """List the objects below the prefix, or the single object of that name."""
        folder = f"{self._prefix}/" if self._prefix else ""
        if items := self._list(folder, folder):
            return items
        siblings = self._list(self._prefix, self._prefix[: self._prefix.rfind("/") + 1])
        return [item for item in siblings if item.key == self._prefix]

    def locate(self, item: Item) -> Location:
        return self._bucket.locate(item.key, item.version)

    def subfolder(self, name: str) -> Self:
        """A folder below this prefix, sharing the connection."""
        store = copy(self)
        store.uri = f"{self.uri}/{name}"
        store._prefix = f"{self._prefix}/{name}" if self._prefix else name
        return store

    def _list(self, prefix: str, folder: str) -> list[Item]:
        """Objects whose key starts with `prefix`, with paths relative to `folder`."""
        # Consoles create empty objects to show a folder.
        objects = [each for each in self._bucket.list_objects(prefix) if not each.key.endswith("/")]
        return [replace(each, path=checked_path(each.key.removeprefix(folder), self.uri)) for each in objects]
