"""Where weights and adapters come from: one file a kind of place, and one cache a node."""

from rayllm.sources.faults import UnreachableError
from rayllm.sources.model import Fetched, Version, fetch
from rayllm.sources.node import node_cache
from rayllm.sources.progress import LoggedProgress, Progress
from rayllm.sources.selection import find_weights

__all__ = [
    "Fetched",
    "LoggedProgress",
    "Progress",
    "UnreachableError",
    "Version",
    "fetch",
    "find_weights",
    "node_cache",
]
