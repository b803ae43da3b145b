"""What all downloads of this process share."""

from __future__ import annotations

from functools import cache

from rayllm.config import BucketSource, HubSource
from rayllm.settings import settings
from rayllm.sources.bucket import BucketStore
from rayllm.sources.cache import Cache
from rayllm.sources.download import Limits
from rayllm.sources.gcs import GcsStore
from rayllm.sources.hub import HubStore
from rayllm.sources.s3 import S3Store
from rayllm.sources.store import Store


@cache
def node_cache() -> Cache:
    """This node's cache, as the settings say."""
    return Cache(settings().cache_path / "sources", int(settings().cache_max_gb * 1e9))


def limits(deadline_s: float | None = None) -> Limits:
    """How hard a download tries, as the settings say."""
    return Limits(settings().download_threads, settings().download_tries, deadline_s)


def open_store(source: BucketSource | HubSource) -> Store:
    """The place that a source means."""
    if isinstance(source, HubSource):
        return HubStore(source)
    return open_bucket(source)


def open_bucket(source: BucketSource) -> BucketStore:
    """The folder of a bucket that a source means."""
    return S3Store(source) if source.bucket_uri.startswith("s3://") else GcsStore(source)
