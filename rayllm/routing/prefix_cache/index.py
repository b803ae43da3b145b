"""Index of prompt prefixes: which replicas this router has sent them to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import count

from rayllm.routing.request import RoutingRequest

# Prefixes remembered, least recently used dropped: about 16 MB, or 5,000 conversations.
_MAX_PREFIXES = 64 * 1024
# Replicas remembered for each prefix, the most recent ones.
_MAX_REPLICAS = 8


class PrefixIndex:
    """A bounded table from prefix digests to replicas."""

    def __init__(self, max_prefixes: int = _MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._table: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        # Replicas are stored by number, so that removing one need not scan the table.
        self._numbers: dict[str, int] = {}
        self._next = count()

    def __len__(self) -> int:
        return len(self._table)

    def cached_tokens(self, request: RoutingRequest, replica_ids: Collection[str]) -> dict[str, int]:
        """Prompt tokens that each of these replicas has processed before; replicas without any are left out."""
        remaining = {self._numbers[one]: one for one in replica_ids if one in self._numbers}
        cached: dict[str, int] = {}
        for digest, tokens in zip(reversed(request.prefix_digests), reversed(request.prefix_tokens), strict=True):
            for number in self._table.get(digest, ()):
                replica_id = remaining.pop(number, None)
                if replica_id is not None:
                    cached[replica_id] = tokens
            if not remaining:
                break
        return cached

    def add(self, prefix_digests: Sequence[int], replica_id: str) -> None:
        """Record that a prompt with these prefixes was sent to a replica."""
        if replica_id not in self._numbers:
            self._numbers[replica_id] = next(self._next)
        number = self._numbers[replica_id]
        for digest in prefix_digests:
            numbers = self._table.get(digest, ())
            if not numbers or numbers[0] != number:
                others = [other for other in numbers if other != number]
                self._table[digest] = (number, *others[: _MAX_REPLICAS - 1])
            self._table.move_to_end(digest)
        while len(self._table) > self._max_prefixes:
            self._table.popitem(last=False)

    def remove(self, replica_id: str) -> None:
        """Forget a replica."""
        self._numbers.pop(replica_id, None)
