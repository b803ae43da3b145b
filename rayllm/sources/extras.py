"""Files of other buckets that a model needs as well (`extra_files`)."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from posixpath import normpath

from rayllm.config import BucketSource, ExtraFile
from rayllm.core.errors import SourceError
from rayllm.sources.cache import node_cache
from rayllm.sources.items import Item, Location, Snapshot, Store
from rayllm.sources.stores import open_store
from rayllm.sources.transfer import DownloadOptions, Progress


class StoreWithExtras:
    """A store with extra files in the model's folder, which replace the store's files of the same path."""

    # Only models in buckets have extra files.
    commit = ""

    def __init__(self, store: Store, source: BucketSource) -> None:
        self._store = store
        self._extras = [(extra, _open(extra, source)) for extra in source.extra_files if extra.is_inside]
        self._stores: dict[Item, Store] = {}
        self.extra_paths: set[str] = set()
        self.uri = store.uri

    def files(self) -> list[Item]:
        by_path = {item.path: (item, self._store) for item in self._store.files()}
        for extra, store in self._extras:
            for item in _list(extra, store):
                extra_item = replace(item, path=normpath(_destination(extra, item)))
                by_path[extra_item.path] = (extra_item, store)
                self.extra_paths.add(extra_item.path)
        self._stores = dict(by_path.values())
        return list(self._stores)

    def locate(self, item: Item) -> Location:
        return self._stores[item].locate(item)


def install(extra: ExtraFile, source: BucketSource, progress: Progress) -> None:
    """Fetch an extra file to its destination outside the model's folder; raises SourceError."""
    store = _open(extra, source)
    entry, snapshot = node_cache().fetch(
        store,
        lambda: Snapshot(store.uri, tuple(_list(extra, store))),
        "extra",
        progress,
        DownloadOptions.from_settings(),
    )
    try:
        for item in snapshot.items:
            # Atomically, through a temporary file beside the destination.
            destination = Path(os.path.expandvars(_destination(extra, item))).expanduser()
            destination.parent.mkdir(parents=True, exist_ok=True)
            temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
            shutil.copyfile(entry.files / item.path, temporary)
            temporary.replace(destination)
    except OSError as error:
        key = f"extra_files: {extra.destination_path}"
        raise SourceError(f"{key} cannot be written on this node: {error.strerror}.") from None
    finally:
        node_cache().release(entry)


def _open(extra: ExtraFile, source: BucketSource) -> Store:
    """The extra file's store, with the model's credentials and options, or anonymous."""
    own = BucketSource(bucket_uri=extra.bucket_uri)
    options = {"s3_aws_credentials": None, "anonymous": True} if own.anonymous else {}
    return open_store(source.model_copy(update={"bucket_uri": own.bucket_uri, "extra_files": (), **options}))


def _list(extra: ExtraFile, store: Store) -> list[Item]:
    if items := store.files():
        return items
    raise SourceError(f"extra_files: {extra.bucket_uri} holds nothing; check the address.")


def _destination(extra: ExtraFile, item: Item) -> str:
    """Path of the item: a single file is renamed to the destination unless that ends with a slash."""
    is_single_file = item.key == extra.bucket_uri.split("/", 3)[-1]
    if is_single_file and not extra.destination_path.endswith("/"):
        return extra.destination_path
    return f"{extra.destination_path.rstrip('/')}/{item.path}"
