"""Stores: list and locate the files of a hub repository, a bucket prefix or a local folder."""

from rayllm.config import BucketSource, HubSource
from rayllm.sources.items import Item, Snapshot, Store
from rayllm.sources.stores.bucket import BucketStore
from rayllm.sources.stores.hub import HubStore
from rayllm.sources.stores.local import LocalStore

__all__ = ["BucketStore", "HubStore", "Item", "LocalStore", "Snapshot", "Store", "open_store"]


def open_store(source: BucketSource | HubSource) -> Store:
    """Open the store that a source names; raises SourceError if a bucket's options cannot be used."""
    return HubStore(source) if isinstance(source, HubSource) else BucketStore(source)
