"""Which of our routers a proxy of Ray Serve asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest

from rayllm.serving.cluster.request_router import NearestRouter


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (["here", "there", "elsewhere"], {"here"}),
        (["here", "there", "here", "here"], {"here"}),
        (["there", "elsewhere"], {"there", "elsewhere"}),
        (["there"], {"there"}),
        ([], set()),
    ],
)
async def test_a_proxy_asks_the_routers_of_its_node_while_there_are_any(nodes: list[str], expected: set[str]) -> None:
    chooser = object.__new__(NearestRouter)
    chooser._self_node_id = "here"
    routers: list[Any] = [SimpleNamespace(node_id=node) for node in nodes]
    # Serve asks again and again while the chosen ones are busy.
    pending = PendingRequest(args=[], kwargs={}, metadata=RequestMetadata("id", "internal"))
    asked = set()
    for _ in range(100):
        [chosen] = await chooser.choose_replicas(routers, pending)
        assert len(chosen) == len(set(map(id, chosen))) == min(2, sum(node in expected for node in nodes))
        asked |= {each.node_id for each in chosen}
    assert asked == expected
    assert pending.routing_context.should_backoff
