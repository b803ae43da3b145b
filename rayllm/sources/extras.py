"""More files than the model's own folder holds (`extra_files`)."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from rayllm.config import BucketSource, ExtraFile
from rayllm.errors import SourceError
from rayllm.sources.items import Item, Snapshot, Target
from rayllm.sources.node import limits, node_cache, open_store
from rayllm.sources.progress import Progress
from rayllm.sources.store import Store


class WithExtras:
    """A place with files of other places among its own. Of two files at one path the extra one counts."""

    def __init__(self, store: Store, source: BucketSource) -> None:
        self._store = store
        self._extras = [(extra, _open(extra, source)) for extra in source.extra_files if extra.is_inside]
        self._holders: dict[Item, Store] = {}
        self.extra_paths: set[str] = set()
        self.where = store.where

    def files(self) -> list[Item]:
        """The place's own files and the extra ones."""
        by_path = {item.path: (item, self._store) for item in self._store.files()}
        for extra, store in self._extras:
            for item in _listed(extra, store):
                placed = replace(item, path=normpath(_destination(extra, item)))
                by_path[placed.path] = (placed, store)
                self.extra_paths.add(placed.path)
        self._holders = dict(by_path.values())
        return list(self._holders)

    def locate(self, item: Item) -> Target:
        """Where the item's own place has it."""
        return self._holders[item].locate(item)

    def commit(self) -> str:
        """The place's own."""
        return self._store.commit()


def put(extra: ExtraFile, source: BucketSource, progress: Progress) -> None:
    """Have an extra file at its place on this node, outside the model's folder.

    Raises:
        SourceError: it cannot be had or written.
    """
    store = _open(extra, source)
    entry, snapshot = node_cache().have(
        store, lambda: Snapshot(store.where, tuple(_listed(extra, store))), "extra", progress, limits()
    )
    try:
        for item in snapshot.items:
            _copy(entry.files / item.path, Path(os.path.expandvars(_destination(extra, item))).expanduser())
    except OSError as error:
        where = f"extra_files: {extra.destination_path}"
        raise SourceError(f"{where} cannot be written on this node: {error.strerror}.") from None
    finally:
        node_cache().release(entry)


def _open(extra: ExtraFile, source: BucketSource) -> Store:
    """The extra's place, with the way of the model's own to get there."""
    return open_store(source.model_copy(update={"bucket_uri": extra.bucket_uri, "extra_files": ()}))


def _listed(extra: ExtraFile, store: Store) -> list[Item]:
    if items := store.files():
        return items
    raise SourceError(f"extra_files: {extra.bucket_uri} holds nothing; check the address.")


def _destination(extra: ExtraFile, item: Item) -> str:
    """Where the item goes: a file alone takes the destination as its own name, unless that ends with a slash."""
    is_alone = item.key == extra.bucket_uri.split("/", 3)[-1]
    if is_alone and not extra.destination_path.endswith("/"):
        return extra.destination_path
    return f"{extra.destination_path.rstrip('/')}/{item.path}"


def _copy(file: Path, destination: Path) -> None:
    """Copy under a name of its own first: nobody sees half a file."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
    shutil.copyfile(file, temporary)
    temporary.replace(destination)
