"""Replicas come and go with the load, from none at all, and no request notices more than a wait."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import ray
import yaml
from ray import serve
from ray.util.placement_group import placement_group, remove_placement_group

from rayllm import build_app
from rayllm.serving.cluster.status_report import find_request
from tests.integration.service import DEMO
from tests.servers.process import free_port

APP = MODEL = "elastic"
WAITING = "waiting"
FIRST = 200
MANY = 24
PATH = "v1/chat/completions"


@dataclass
class Watched:
    """What has been seen so far."""

    most_starting_from_none: int = 0
    most_running: int = 0
    running: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


def model() -> dict[str, Any]:
    """The demo, with as many replicas as the load wants."""
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = DEMO.parent / demo["model_loading_config"]["model_source"]
    demo["model_loading_config"] = {"model_id": MODEL, "model_source": str(weights.resolve())}
    del demo["lora_config"]
    demo["deployment_config"] = {
        "max_ongoing_requests": 64,
        "max_queued_requests": FIRST,
        "autoscaling_config": {
            "min_replicas": 0,
            "max_replicas": 2,
            "target_ongoing_requests": 8,
            "metrics_interval_s": 0.5,
            "look_back_period_s": 2,
            "upscale_delay_s": 2,
            "downscale_delay_s": 4,
            "downscale_to_zero_delay_s": 4,
        },
    }
    return demo


def waiting() -> dict[str, Any]:
    """A model whose replica cannot be placed while a placement group holds the cluster's GPUs."""
    scaling = {"min_replicas": 0, "max_replicas": 1, "target_ongoing_requests": 1}
    return model() | {
        "model_loading_config": model()["model_loading_config"] | {"model_id": WAITING},
        "deployment_config": {"autoscaling_config": scaling},
        "accelerator_type": "A10G",
    }


@pytest.fixture(scope="module")
def url(proxy_url: str) -> Iterator[str]:
    """The address of the application's own routers."""
    listen = f"127.0.0.1:{free_port()}"
    args = {
        "llm_configs": [model(), waiting()],
        "router": {"listen": listen, "num_replicas": 1, "queue_timeout_s": 400},
    }
    serve.run(build_app(args), name=APP, route_prefix="/elastic")
    yield f"http://{listen}/elastic"
    serve.delete(APP)


async def ask(client: httpx.AsyncClient, seen: Watched, stream: bool, tokens: int) -> httpx.Response:
    """A chat whose whole answer is taken in."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    length = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
    reply = await client.post(PATH, json={"model": MODEL, "messages": messages, "stream": stream, **length})
    seen.statuses[reply.status_code] += 1
    if stream and reply.status_code == 200:
        assert reply.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in reply.text
    return reply


@asynccontextmanager
async def clients(seen: Watched, url: str, count: int) -> AsyncIterator[httpx.AsyncClient]:
    """So many clients, each of which asks again and again, half of them for streams; and one client for more."""
    leaving = asyncio.Event()

    async def talk(client: httpx.AsyncClient, stream: bool) -> None:
        while not leaving.is_set():
            await ask(client, seen, stream, 128)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=400, limits=limits) as client, asyncio.TaskGroup() as group:
        for index in range(count):
            group.create_task(talk(client, index % 2 == 0))
        yield client
        leaving.set()


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    """Keep an eye on the replicas."""
    seen = Watched()

    async def watch() -> None:
        while True:
            status = await asyncio.to_thread(serve.status)
            states = status.applications[APP].deployments[MODEL].replica_states
            seen.running = states.get("RUNNING", 0)
            seen.most_running = max(seen.most_running, seen.running)
            if not seen.most_running:
                seen.most_starting_from_none = max(seen.most_starting_from_none, states.get("STARTING", 0))
            await asyncio.sleep(0.2)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(happens: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end, f"not within {timeout_s} s"
        await asyncio.sleep(0.1)


async def ended_record(request_id: str) -> dict[str, Any]:
    """The router's record of a request; the router learns of the end of a reply a little after the client."""
    end = time.monotonic() + 10
    while (record := await asyncio.to_thread(find_request, request_id)) is None:
        assert time.monotonic() < end
        await asyncio.sleep(0.1)
    return record


@pytest.mark.timeout(1200)
async def test_from_none_to_two_and_back_without_a_failed_request(url: str) -> None:
    async with watched() as seen:
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == MODEL
        async with clients(seen, url, 0) as client:
            first = [asyncio.create_task(ask(client, seen, index % 2 == 0, 8)) for index in range(FIRST)]
            await until(lambda: seen.most_starting_from_none > 0, 60)
            # The queue is full: another request gets 503 with Retry-After.
            late = await ask(client, Watched(), False, 8)
            assert (late.status_code, late.json()["error"]["type"]) == (503, "overloaded_error")
            assert int(late.headers["retry-after"]) > 0
            answered = await asyncio.gather(*first)
        assert seen.statuses == {200: FIRST}
        record = await ended_record(answered[0].headers["x-request-id"])
        assert max(record["parts"], key=record["parts"].get) == "wait"
        assert "it waited until a replica was running" in record["explanation"]
        assert seen.most_starting_from_none == 1

        async with clients(seen, url, MANY):
            await until(lambda: seen.running == 2, 400)
            both = seen.statuses.total() + 4 * MANY
            await until(lambda: seen.statuses.total() > both, 120)
        async with clients(seen, url, 1):
            await until(lambda: seen.running == 1, 150)
        await until(lambda: seen.running == 0, 150)
        assert seen.statuses.keys() == {200}
        assert seen.most_running == 2


@pytest.fixture
def held_gpus(cluster: None) -> Iterator[None]:
    """A placement group that holds all GPUs of the cluster."""
    group = placement_group([{"GPU": ray.cluster_resources()["GPU"]}])
    ray.get(group.ready(), timeout=60)
    yield
    remove_placement_group(group)


@pytest.mark.usefixtures("held_gpus")
async def test_a_stream_gets_heartbeats_while_it_waits_for_a_replica(url: str) -> None:
    body = {"model": WAITING, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with (
        httpx.AsyncClient(base_url=url, timeout=400) as client,
        client.stream("POST", PATH, json=body) as reply,
    ):
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.aiter_lines()
        assert [await anext(lines), await anext(lines), await anext(lines)] == [
            ": waiting for a replica",
            "",
            ": waiting for a replica",
        ]
