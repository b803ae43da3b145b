"""What counts as a prefix cache hit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayllm.routing.request import RoutingRequest


def cache_hits(request: RoutingRequest, cached_tokens: Mapping[str, int]) -> set[str]:
    """The replicas with the most tokens of the prompt; none unless one has the part specific to the conversation.

    Less than that is a shared opening, such as a system prompt, which many replicas have.

    Args:
        cached_tokens: prompt tokens in each replica's cache, by replica id.
    """
    most = max(cached_tokens.values(), default=0)
    if most < request.affinity_tokens:
        return set()
    return {replica_id for replica_id, tokens in cached_tokens.items() if tokens == most}
