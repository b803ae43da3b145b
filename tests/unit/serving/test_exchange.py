"""Router to replica over real HTTP: leases from a small stand-in for Ray Serve's handle, all else as it is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError

from rayllm.config import RouterConfig, load_app
from rayllm.serving.catalogue import Catalogue
from rayllm.serving.exchange import Exchanger
from rayllm.serving.http_errors import install_error_handlers
from rayllm.serving.lease import LeaseGate, Leases
from rayllm.serving.loaded_adapters import LoadedAdapters
from rayllm.serving.relay import Relay

PATH = "/v1/chat/completions"
FORM_PATH = "/v1/audio/transcriptions"


class Replica:
    """A model replica without an engine: `answer` is its ASGI application."""

    def __init__(self, answer: Any) -> None:
        self.leases = Leases(unused_timeout_s=0.5)
        self.cancelled = 0
        self.full = False
        self.starting = False
        self.address = ""
        self.responses: list[Response] = []
        self.adapters: list[str] = []
        self.server = uvicorn.Server(
            uvicorn.Config(LeaseGate(answer, self.leases), port=0, log_level="error", lifespan="off")
        )

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Replica]:
        task = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.01)
        self.address = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.server.should_exit = True
            self.server.force_exit = True
            await task

    def die(self) -> None:
        """Fail the leases as Ray does when the actor is lost, and say nothing over HTTP."""
        for response in self.responses:
            response.fail(RayActorError())

    # What a Ray Serve handle offers of it.
    def options(self, stream: bool, method_name: str) -> Replica:
        assert (stream, method_name) == (True, "lease")
        return self

    def remote(self, lease_id: str, adapter: str = "") -> Response:
        self.adapters.append(adapter)
        self.responses.append(Response(self, lease_id))
        return self.responses[-1]


class Response:
    """What a streaming call of a handle gives back: the replica works on its own, `cancel` stops it."""

    def __init__(self, replica: Replica, lease_id: str) -> None:
        self._replica = replica
        self._items: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self._work = asyncio.create_task(self._lease(lease_id))

    async def _lease(self, lease_id: str) -> None:
        if self._replica.starting:
            await asyncio.sleep(60)
        if self._replica.full:
            self._items.put_nowait(BackPressureError(num_queued_requests=1, max_queued_requests=1))
            return
        async with self._replica.leases.hold(lease_id) as lease:
            self._items.put_nowait(self._replica.address)
            await lease.finished()
        self._items.put_nowait(None)

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> str:
        item = await self._items.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    def fail(self, error: Exception) -> None:
        self._items.put_nowait(error)

    def cancel(self) -> None:
        self._replica.cancelled += 1
        self._work.cancel()


class Answer:
    """A scripted application: sends chunks, notices when its client leaves, stops or breaks off where told."""

    def __init__(self, *chunks: bytes, pause_after: int | None = None, break_after: int | None = None) -> None:
        self.chunks = chunks
        self.pause_after = pause_after
        self.break_after = break_after
        self.left = asyncio.Event()
        self.status = 200
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        if self.status != 200:
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b"plain text"})
            return
        stream = len(self.chunks) != 1 or self.pause_after == 0
        kind = b"text/event-stream" if stream else b"application/json"
        if self.pause_after != 0:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for index, chunk in enumerate(self.chunks):
            if index == self.pause_after:
                assert (await receive())["type"] == "http.disconnect"
                self.left.set()
                return
            if index == self.break_after:
                raise ConnectionError("the engine fell over")
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def service(replicas: dict[str, Replica], **router: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router in front of `replicas`, which take adapters, everything over real sockets."""
    lora = {"dynamic_lora_loading_path": "/x"}
    models = [{"model_loading_config": {"model_id": name}, "lora_config": lora} for name in replicas]
    config = load_app({"llm_configs": models, "router": router})
    exchanger = Exchanger(replicas, connect_timeout_s=1, queue_timeout_s=0.5)  # type: ignore[arg-type]
    app = FastAPI()
    relay = Relay(Catalogue(config), LoadedAdapters("app"), exchanger, config.router)
    for path in (PATH, FORM_PATH):
        app.add_api_route(path, relay.handle, methods=["POST"])
    install_error_handlers(app)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=base, timeout=10) as client:
            yield client
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
        await exchanger.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_plain_reply_comes_through_whole() -> None:
    answer = Answer(b'{"x": 1}')
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        sent = b'{"model": "m",  "messages": []}'
        reply = await client.post(PATH, content=sent, headers={"x-request-id": "r1"})
        assert (reply.status_code, reply.json()) == (200, {"x": 1})
        assert answer.bodies == [sent]
        headers = dict(answer.scopes[0]["headers"])
        assert (headers[b"x-request-id"], headers[b"x-rayllm-model"]) == (b"r1", b"m")
        await until(lambda: len(replica.leases) == 0)
        assert replica.cancelled == 0


async def test_an_adapters_name_chooses_the_replica_and_reaches_it() -> None:
    answer = Answer(b"{}")
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        await client.post(PATH, json={"model": "m:x"}, headers={"x-rayllm-adapter-path": "/etc"})
        await client.post(PATH, json={"model": "m"}, headers={"x-rayllm-adapter": "x"})
    told = [{k: v for k, v in scope["headers"] if k.startswith(b"x-rayllm-")} for scope in answer.scopes]
    assert [headers.pop(b"x-rayllm-lease") for headers in told]
    assert told == [{b"x-rayllm-model": b"m:x", b"x-rayllm-adapter": b"x"}, {b"x-rayllm-model": b"m"}]
    assert replica.adapters == ["x", ""]


async def test_a_fallback_is_asked_for_itself_not_for_the_adapter() -> None:
    answer = Answer(b"{}")
    full = Replica(Answer(b"{}"))
    full.full = True
    async with Replica(answer).listening() as free, service({"a": full, "b": free}, fallbacks={"a": ["b"]}) as client:
        assert (await client.post(PATH, json={"model": "a:x"})).status_code == 200
    assert (full.adapters, free.adapters) == (["x"], [""])
    assert b"x-rayllm-adapter" not in dict(answer.scopes[0]["headers"])


async def test_headers_that_steer_ray_serve_stop_at_the_router() -> None:
    answer = Answer(b"{}")
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        steering = {"authorization": "Bearer x", "x-request-timeout-seconds": "9", "serve-multiplexed-model-id": "y"}
        await client.post(PATH, json={"model": "m"}, headers=steering)
        given = {key.decode() for key, _ in answer.scopes[0]["headers"]}
        assert given.isdisjoint(steering)


@pytest.mark.parametrize("logged", [True, False])
async def test_prompts_are_logged_only_where_asked_for(logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, service({"m": replica}, log_prompts=logged) as client:
        with caplog.at_level("INFO", "rayllm"):
            await client.post(PATH, json={"model": "m", "messages": "a secret"})
            files = {"file": ("a.wav", b"sound of it", "audio/wav")}
            await client.post(FORM_PATH, data={"model": "m", "prompt": "another one"}, files=files)
    assert ("a secret" in caplog.text, "another one" in caplog.text) == (logged, logged)
    assert "sound of it" not in caplog.text


async def test_a_stream_comes_through_chunk_by_chunk() -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n")
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        reply = await client.post(PATH, json={"model": "m"})
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.content == b"".join(answer.chunks)


async def test_a_client_that_leaves_a_stream_ends_it_in_the_replica() -> None:
    answer = Answer(b"data: 1\n\n", b"never sent", pause_after=1)
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        async with client.stream("POST", PATH, json={"model": "m"}) as reply:
            assert await anext(reply.aiter_raw()) == b"data: 1\n\n"
        await asyncio.wait_for(answer.left.wait(), 2)
        await until(lambda: len(replica.leases) == 0)


async def test_a_client_that_leaves_before_the_first_byte_ends_it_too() -> None:
    answer = Answer(b"never sent", pause_after=0)
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(PATH, json={"model": "m"}, timeout=0.3)
        await asyncio.wait_for(answer.left.wait(), 2)
        await until(lambda: len(replica.leases) == 0)


async def test_no_answer_in_time_is_408_and_ends_it_in_the_replica() -> None:
    answer = Answer(b"never sent", pause_after=0)
    async with Replica(answer).listening() as replica, service({"m": replica}, request_timeout_s=0.2) as client:
        reply = await client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")
        await asyncio.wait_for(answer.left.wait(), 2)


async def test_a_replica_that_dies_in_mid_stream_is_told_as_an_event() -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", b"x", break_after=2)
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        reply = await client.post(PATH, json={"model": "m"})
        assert reply.status_code == 200
        *good, last, end = reply.text.split("\n\n")
        assert good[:2] == ["data: 1", "data: 2"]
        assert last.startswith('data: {"error"')
        assert '"type": "server_error"' in last
        assert end == ""


async def test_a_full_model_is_503_and_its_fallback_is_tried() -> None:
    async with Replica(Answer(b'{"from": "a"}')).listening() as a, Replica(Answer(b'{"from": "b"}')).listening() as b:
        a.full = True
        async with service({"a": a, "b": b}) as client:
            reply = await client.post(PATH, json={"model": "a"})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert reply.json()["error"]["type"] == "overloaded_error"
        async with service({"a": a, "b": b}, fallbacks={"a": ["b"]}) as client:
            assert (await client.post(PATH, json={"model": "a"})).json() == {"from": "b"}


async def test_a_fallback_is_asked_by_its_own_name() -> None:
    """vLLM answers 404 to a name that it does not serve."""
    full, free = Answer(b"{}"), Answer(b"{}")
    full.status = 503
    async with Replica(full).listening() as a, Replica(free).listening() as b:
        async with service({"a": a, "b": b}, fallbacks={"a": ["b"]}) as client:
            assert (await client.post(PATH, json={"model": "a", "x": 1})).status_code == 200
        assert json.loads(free.bodies[0]) == {"model": "b", "x": 1}
        assert dict(free.scopes[0]["headers"])[b"x-rayllm-model"] == b"b"
        await until(lambda: len(a.leases) == len(b.leases) == 0)


async def test_waiting_for_a_replica_has_an_end() -> None:
    replica = Replica(Answer(b"{}"))
    replica.starting = True
    async with service({"m": replica}) as client:
        reply = await client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
        assert replica.cancelled == 1


@pytest.mark.parametrize("status", [403, 500])
async def test_what_is_no_error_object_becomes_one(status: int) -> None:
    answer = Answer(b"{}")
    answer.status = status
    async with Replica(answer).listening() as replica, service({"m": replica}) as client:
        reply = await client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
        assert "plain text" not in reply.text


async def test_a_replica_that_ray_gave_up_ends_the_stream_though_its_socket_is_silent() -> None:
    answer = Answer(b"data: 1\n\n", b"never sent", pause_after=1)
    async with (
        Replica(answer).listening() as replica,
        service({"m": replica}) as client,
        client.stream("POST", PATH, json={"model": "m"}) as reply,
    ):
        chunks = reply.aiter_raw()
        assert await anext(chunks) == b"data: 1\n\n"
        replica.die()
        assert b'"type": "server_error"' in await asyncio.wait_for(anext(chunks), 2)


async def test_a_replica_that_is_gone_is_503() -> None:
    replica = Replica(Answer(b"{}"))
    replica.address = "http://127.0.0.1:9"
    async with service({"m": replica}) as client:
        reply = await client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")


async def test_large_bodies_and_unknown_models_never_reach_a_replica() -> None:
    replica = Replica(Answer(b"{}"))
    async with service({"m": replica}, max_body_bytes=1024) as client:
        assert (await client.post(PATH, json={"model": "m", "x": "y" * 2000})).status_code == 413
        assert (await client.post(PATH, json={"model": "n"})).status_code == 404
        assert (await client.post(PATH, content=b"{")).status_code == 400
        assert (await client.post("/nope", json={})).json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("lease", [None, "wrong"])
async def test_a_replica_answers_only_lease_holders(lease: str | None) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, httpx.AsyncClient() as client:
        headers = {"x-rayllm-lease": lease} if lease else {}
        assert (await client.post(replica.address + PATH, json={}, headers=headers)).status_code == 403


async def test_a_lease_serves_once_and_is_given_up_when_unused() -> None:
    async with Replica(Answer(b"{}")).listening() as replica, httpx.AsyncClient() as client:
        response = replica.remote("once")
        await anext(response)
        headers = {"x-rayllm-lease": "once"}
        assert (await client.post(replica.address + PATH, json={}, headers=headers)).status_code == 200
        assert (await client.post(replica.address + PATH, json={}, headers=headers)).status_code == 403
        unused = replica.remote("unused")
        await anext(unused)
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(unused), 2)


def test_router_options_have_finite_defaults() -> None:
    config = RouterConfig()
    assert config.request_timeout_s == 600
    assert config.max_body_bytes == 32 * 2**20
