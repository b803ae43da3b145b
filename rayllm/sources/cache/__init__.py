"""The cache of one node, shared by its processes."""

from rayllm.sources.cache.cache import Cache, node_cache
from rayllm.sources.cache.entry import Entry

__all__ = ["Cache", "Entry", "node_cache"]
