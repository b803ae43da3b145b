"""Fetching weights, tokenizers and adapters: stores to read from, transfers, and the cache of each node.

Process: any; most often a replica.
"""

from rayllm.sources.cache import node_cache
from rayllm.sources.errors import UnreachableError
from rayllm.sources.model import Fetched, Version, fetch
from rayllm.sources.selection import find_weights, mistral_priority
from rayllm.sources.transfer import DownloadOptions, LoggedProgress, Progress

__all__ = [
    "DownloadOptions",
    "Fetched",
    "LoggedProgress",
    "Progress",
    "UnreachableError",
    "Version",
    "fetch",
    "find_weights",
    "mistral_priority",
    "node_cache",
]
