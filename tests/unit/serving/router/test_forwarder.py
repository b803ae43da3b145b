"""What a replica gets of a client's request, and what the router logs of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import httpx
import pytest
from starlette.responses import JSONResponse

from rayllm.access import Caller
from rayllm.core.asgi import call
from rayllm.core.endpoints import CHAT
from rayllm.core.shares import current_tenant
from tests.fakes.answers import Answer
from tests.fakes.clock import until
from tests.fakes.replica import AdapterPool, Replica
from tests.fakes.router import FORM_PATH, LANES, served, service


@LANES
async def test_a_plain_reply_comes_through_whole(lane: str) -> None:
    answer = Answer(b'{"x": 1}')
    async with served(lane, answer) as router:
        sent = b'{"model": "m",  "messages": []}'
        reply = await router.client.post(CHAT, content=sent, headers={"x-request-id": "r1"})
        assert (reply.status_code, reply.json(), reply.headers["x-request-id"]) == (200, {"x": 1}, "r1")
        assert answer.bodies == [sent]
        headers = dict(answer.scopes[0]["headers"])
        assert (headers[b"x-request-id"], headers[b"x-rayllm-model"]) == (b"r1", b"m")
        await until(lambda: not router.replica.count.held)


@LANES
async def test_an_adapters_name_reaches_the_replica_and_a_clients_own_headers_do_not(lane: str) -> None:
    answer = Answer(b"{}")
    async with served(lane, answer) as router:
        await router.ask("m:x", headers={"x-rayllm-adapter-path": "/etc"})
        await router.ask(headers={"x-rayllm-adapter": "x", "x-rayllm-key": "y"})
    internal_headers = [{k: v for k, v in scope["headers"] if k.startswith(b"x-rayllm-")} for scope in answer.scopes]
    assert all(int(headers.pop(b"x-rayllm-work")) > 0 for headers in internal_headers)
    assert {headers.pop(b"x-rayllm-key", b"secret") for headers in internal_headers} == {b"secret"}
    assert {headers.pop(b"x-rayllm-frames", b"1") for headers in internal_headers} == {b"1"}
    assert {headers.pop(b"x-rayllm-priority") for headers in internal_headers} == {b"standard"}
    assert internal_headers == [{b"x-rayllm-model": b"m:x", b"x-rayllm-adapter": b"x"}, {b"x-rayllm-model": b"m"}]


@LANES
async def test_a_models_name_may_be_in_any_script(lane: str) -> None:
    answer = Answer(b"{}")
    async with Replica(answer).listening() as replica, service(lane, {"modèle-模型": [replica]}) as router:
        assert (await router.ask("modèle-模型")).status_code == 200
    assert dict(answer.scopes[0]["headers"])[b"x-rayllm-model"].decode() == "modèle-模型"


@LANES
async def test_headers_that_steer_ray_serve_stop_at_the_router(lane: str) -> None:
    answer = Answer(b"{}")
    async with served(lane, answer) as router:
        steering = {"authorization": "Bearer x", "x-request-timeout-seconds": "9", "serve-multiplexed-model-id": "y"}
        await router.ask(headers=steering)
        given = {key.decode() for key, _ in answer.scopes[0]["headers"]}
        assert given.isdisjoint(steering)


@pytest.mark.parametrize("key", [None, "wrong", ""])
async def test_a_replicas_port_is_for_routers_alone(key: str | None) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, httpx.AsyncClient() as client:
        headers = {"x-rayllm-key": key} if key is not None else {}
        assert (await client.post(replica.address + CHAT, json={}, headers=headers)).status_code == 403


async def test_a_replica_knows_whose_request_it_works_on() -> None:
    async def tells(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"tenant": current_tenant.get()})(scope, receive, send)

    async with served("relay", tells) as router:
        for tenant in ("a", "", "b"):
            caller = Caller(tenant, tenant)
            reply = await call(router.forwarder, CHAT, b'{"model": "m"}', {}, user=caller)
            assert json.loads(reply.body) == {"tenant": tenant}


@LANES
async def test_an_adapter_that_a_replica_has_is_not_looked_up(lane: str) -> None:
    adapters = AdapterPool()
    async with served(lane, Answer(b"{}"), adapters) as router:
        update = router.replica.replica_update("m-0")
        update.stats["adapters"] = ["held"]
        router.replica_sets["m"].update([update])
        assert (await router.ask("m:held")).status_code == 200
        reply = await router.ask("m:none")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert adapters.asked == ["none"]


@LANES
async def test_a_thousand_invented_adapters_take_no_slot_from_anybody(lane: str) -> None:
    """Nobody may wait for a slot here, so that one invented name in a slot could cost another request its own."""
    answer, adapters = Answer(b"{}", takes_s=0.05), AdapterPool("there")
    async with served(lane, answer, adapters, max_ongoing_requests=5000) as router:
        router.queues["m"].limit = 0
        url = str(router.client.base_url).rstrip("/") + CHAT
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as crowd:

            async def ask(model: str) -> int:
                async with crowd.post(url, json={"model": model}) as reply:
                    return reply.status

            async def work() -> list[int]:
                return [await ask(("m", "m:there")[number % 2]) for number in range(10)]

            flood = asyncio.gather(*(ask(f"m:invented-{number % 700}") for number in range(1000)))
            # Fewer than there are slots: a slot is free a moment after its client has the reply.
            worked = await asyncio.gather(*(work() for _ in range(5)))
            assert worked == [[200] * 10] * 5
            assert set(await flood) == {404}
    assert answer.most_at_once <= 10
    assert all(b"invented" not in body for body in answer.bodies)
    # Each is asked once for as long as the answer is remembered.
    assert len(adapters.asked) < 3 * 701


@pytest.mark.parametrize("logged", [True, False])
async def test_prompts_are_logged_only_with_log_prompts(logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with served("relay", Answer(b"{}"), log_prompts=logged) as router:
        with caplog.at_level("INFO", "rayllm"):
            await router.ask(messages="a secret")
            files = {"file": ("a.wav", b"sound of it", "audio/wav")}
            await router.client.post(FORM_PATH, data={"model": "m", "prompt": "another one"}, files=files)
    assert ("a secret" in caplog.text, "another one" in caplog.text) == (logged, logged)
    assert "sound of it" not in caplog.text


async def test_a_request_is_logged_as_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with served("relay", Answer(b"{}"), log_prompts=True) as router:
        with caplog.at_level("INFO", "rayllm"):
            forged = b'{"model": "m",\n"messages": "\xc2\x85\xe2\x80\xa8 \x7f\xe2\x80\xae gr\xc3\xbcn"}'
            await router.client.post(CHAT, content=forged, headers={"content-type": "application/json"})
            await router.ask("m\nINFO forged\x1b[2J", messages="x")
            form = {"model": "m", "prompt": "x", "a\nb": "y"}
            files = {"file": ("a.wav", b"sound of it", "audio/wav")}
            await router.client.post(FORM_PATH, data=form, files=files)
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Request to")]
    assert [line for line in logged if len(line.splitlines()) > 1 or "\x1b" in line] == []
    assert logged[0] == r"""Request to `m`: {"model": "m",\n"messages": "\x85\u2028 \x7f\u202e grün"}"""
    assert len(logged) == 3
