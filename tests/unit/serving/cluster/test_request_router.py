"""Which of our routers a proxy of Ray Serve asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from rayllm.serving.cluster.request_router import NearestRouter, WatchingRouter


def made(kind: type[RequestRouter]) -> Any:
    """A request router as Ray Serve makes it, on the node `here`."""
    return kind(
        deployment_id=DeploymentID("name", "app"),
        handle_source=DeploymentHandleSource.PROXY,
        self_node_id="here",
        self_actor_id="actor",
        self_actor_handle=None,
        use_replica_queue_len_cache=False,
        create_replica_wrapper_func=RunningReplica,
        prefer_local_node_routing=True,
        prefer_local_az_routing=True,
        self_availability_zone=None,
    )


async def test_handles_choose_among_the_replicas_of_a_model() -> None:
    replicas: list[Any] = [SimpleNamespace(node_id=node) for node in ("there", "elsewhere")]
    [chosen] = await made(WatchingRouter).choose_replicas(replicas)
    assert len(chosen) == 2


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
    chooser = made(NearestRouter)
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
