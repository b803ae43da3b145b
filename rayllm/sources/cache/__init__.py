"""The cache of one node, shared by its processes."""

from __future__ import annotations

import functools

from rayllm.core.settings import settings
from rayllm.sources.cache.cache import Cache
from rayllm.sources.cache.entry import Entry

__all__ = ["Cache", "Entry", "node_cache"]


@functools.cache
def node_cache() -> Cache:
    """This node's cache, configured by the `RAYLLM_*` variables."""
    return Cache(settings().cache_path / "sources", int(settings().cache_max_gb * 1e9))
