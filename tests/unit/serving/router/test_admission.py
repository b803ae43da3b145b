"""Requests and bodies that a router takes at once, and those that it refuses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from rayllm.access import Caller
from rayllm.config import RouterConfig
from rayllm.core.asgi import call
from rayllm.core.endpoints import CHAT, COMPLETIONS
from tests.fakes.answers import Answer, waiting
from tests.fakes.clock import until
from tests.fakes.router import LANES, served, service


def test_router_options_have_finite_defaults() -> None:
    config = RouterConfig()
    assert config.request_timeout_s == 600
    assert config.max_body_bytes == 32 * 2**20


async def test_large_bodies_and_unknown_models_never_reach_a_replica() -> None:
    async with service("relay", {"m": []}, max_body_bytes=1024) as router:
        assert (await router.ask(prompt="x" * 2000)).status_code == 413
        assert (await router.ask("n")).status_code == 404
        assert (await router.client.post(CHAT, content=b"{")).status_code == 400
        assert (await router.ask(path="/nope")).json()["error"]["code"] == "not_found"


@LANES
async def test_bodies_in_memory_are_bounded_and_given_back(lane: str) -> None:
    asked, rest, large = asyncio.Event(), asyncio.Event(), "x" * 6000
    answer = waiting(rest, Answer(b"{}"), asked)
    async with served(lane, answer, max_pending_body_bytes=10_000) as router:
        for _ in range(3):
            asked.clear()
            rest.clear()
            first = router.asking(prompt=large)
            await asked.wait()
            refused = await router.ask(prompt=large)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "router.max_pending_body_bytes" in refused.json()["error"]["message"]
            rest.set()
            assert (await first).status_code == 200
            assert (await router.ask()).status_code == 200


async def test_a_tenant_takes_half_of_a_routers_requests_and_bytes() -> None:
    limits = {"max_pending_body_bytes": 10_000, "max_body_bytes": 4000}
    answer = Answer(b"data: 1\n\n", b"x", waits_for=(end := asyncio.Event()))
    async with served("relay", answer, max_ongoing_requests=4, **limits) as router:

        def ask(tenant: str, size: int = 0) -> asyncio.Task[Any]:
            body = json.dumps({"model": "m", "prompt": "x" * size}).encode()
            caller = Caller(tenant, tenant)
            return asyncio.create_task(call(router.forwarder, COMPLETIONS, body, {}, user=caller))

        held = [ask("a") for _ in range(2)]
        await until(lambda: len(answer.bodies) == 2)
        refused = await ask("a")
        error = json.loads(refused.body)["error"]
        assert (refused.status, refused.headers["retry-after"], error["code"]) == (429, "1", "rate_limit_exceeded")
        assert "requests in progress (router.max_ongoing_requests)" in error["message"]
        held += [ask("b", 3500)]
        await until(lambda: len(answer.bodies) == 3)
        refused = await ask("b", 3900)
        assert (
            "request bodies in memory (router.max_pending_body_bytes)" in json.loads(refused.body)["error"]["message"]
        )
        held += [ask("c", 3500)]
        end.set()
        assert [reply.status for reply in await asyncio.gather(*held)] == [200] * 4
