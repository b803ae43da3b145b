"""A model to upload, and helpers to fetch it and to inspect the result."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from rayllm.config import BucketSource
from rayllm.sources import DownloadOptions
from rayllm.sources.cache import Entry, node_cache
from rayllm.sources.items import Snapshot
from rayllm.sources.stores import open_store
from rayllm.sources.transfer import LoggedProgress

WEIGHTS = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
MODEL = {"config.json": b"{}", "w.safetensors": WEIGHTS}


def contents(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetch_entry(uri: str, **options: float) -> Entry:
    """Fetch all of a bucket prefix, with download options that are no settings."""
    store = open_store(BucketSource(bucket_uri=uri))
    entry, _ = node_cache().fetch(
        store,
        lambda: Snapshot(store.uri, tuple(store.files())),
        "all",
        LoggedProgress(),
        DownloadOptions(threads=4, **{"tries": 2, **options}),  # type: ignore[arg-type]
    )
    return entry


def assert_nothing_left(cache_folder: Path) -> None:
    """Assert that no entry is published and no download thread is running."""
    published = [path.parent for path in cache_folder.rglob("manifest.json") if "." not in path.parent.name]
    assert published == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("fetch")] == []
