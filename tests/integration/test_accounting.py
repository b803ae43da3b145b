"""What Ray Serve knows of exchanges that it does not carry: its own books on a replica, which we keep in process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from tests.integration.service import Service
from tests.integration.test_leaving import LONG, within

STREAMS = 5
# Answers in each: many, so that they are written for longer than it takes to look at them.
ANSWERS = 8


def ongoing(deployment: str = "rayllm-demo") -> list[int]:
    """Ongoing requests of each replica, as its actor reports them to Serve's routers and controller."""
    controller: Any = serve.context._get_global_client()._controller
    infos = ray.get(controller._all_running_replicas.remote())
    actors = [
        ray.get_actor(info.replica_id.to_full_id_str(), namespace="serve")
        for key, found in infos.items()
        for info in found
        if key.name == deployment
    ]
    return [ray.get(actor.get_num_ongoing_requests.remote()) for actor in actors]


@pytest.fixture(params=["own", "proxy"])
def base_url(request: pytest.FixtureRequest, service: Service) -> str:
    """Both ways to the router: its own port, and Serve's proxy."""
    return service.url if request.param == "own" else service.proxy_url


@pytest.fixture
def streams(base_url: str) -> Iterator[list[httpx.Response]]:
    """Answers that are being written."""
    body = {**LONG, "n": ANSWERS, "stream": True}
    with httpx.Client(base_url=base_url, timeout=60) as client:
        asked = [client.build_request("POST", "/v1/chat/completions", json=body)] * STREAMS
        with ThreadPoolExecutor(STREAMS) as pool:
            replies = list(pool.map(lambda request: client.send(request, stream=True), asked))
        yield replies
        for reply in replies:
            reply.close()


def test_serve_counts_every_exchange_for_as_long_as_it_lasts(streams: list[httpx.Response]) -> None:
    assert [reply.status_code for reply in streams] == [200] * STREAMS
    assert within(2, lambda: ongoing() == [STREAMS])
    for reply in streams:
        reply.close()
    assert within(60, lambda: ongoing() == [0])


def test_replicas_tell_what_routers_and_autoscaling_go_by(streams: list[httpx.Response]) -> None:
    handle: Any = serve.get_deployment_handle("rayllm-demo", "rayllm")

    def load() -> dict[str, float]:
        stats: dict[str, float] = handle.record_autoscaling_stats.remote().result(timeout_s=10)
        return stats

    def routing() -> dict[str, Any]:
        stats: dict[str, Any] = handle.record_routing_stats.remote().result(timeout_s=10)
        return stats

    assert load().keys() == {"ongoing", "queued_tokens", "kv_use"}
    assert within(60, lambda: load()["ongoing"] == STREAMS and load()["kv_use"] > 0)
    # A prompt of a few tokens and a usual answer for each: no router knows how long an answer will be.
    assert STREAMS * 256 <= routing()["work"] < STREAMS * 512
    for reply in streams:
        reply.close()
    assert within(60, lambda: (load()["ongoing"], routing()["work"], load()["queued_tokens"]) == (0, 0, 0))


def test_resident_adapters_are_told_to_routers(base_url: str) -> None:
    with httpx.Client(base_url=base_url, timeout=60) as client:
        client.post("/v1/completions", json={"model": "rayllm-demo:shout", "prompt": "a", "max_tokens": 1})
    handle: Any = serve.get_deployment_handle("rayllm-demo", "rayllm")
    stats = handle.record_routing_stats.remote().result(timeout_s=10)
    assert "shout" in stats["adapters"]
    assert stats["slots"] == 4


def test_hundreds_of_exchanges_leave_no_slot_behind(base_url: str) -> None:
    body = {"model": "rayllm-demo", "prompt": "a", "max_tokens": 1}
    with httpx.Client(base_url=base_url, timeout=60) as client, ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda _: client.post("/v1/completions", json=body).status_code, range(200)))
    assert codes == [200] * 200
    time.sleep(0.2)
    assert within(60, lambda: ongoing() == [0])
