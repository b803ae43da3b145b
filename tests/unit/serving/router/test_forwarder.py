"""From clients to replicas and back over real sockets, by handover and by HTTP; no engine, and a fake of Serve's
handle.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rayllm.access import Caller
from rayllm.config import RouterConfig, load_app
from rayllm.core import headers
from rayllm.core.asgi import call
from rayllm.core.endpoints import COMPLETIONS, MESSAGES, MODERATIONS, RESPONSES
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import RequestError
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.core.shares import current_tenant
from rayllm.core.sockets import socket_folder
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.cluster.state.quota_registry import QuotaRegistry
from rayllm.serving.replica.drain import DrainGate
from rayllm.serving.replica.middleware import RouterGate, SlotGate
from rayllm.serving.replica.slots import Slots
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.rate_limiter import RateLimiter
from rayllm.serving.router.adapters.lookup import AdapterLookup, missing_adapters
from rayllm.serving.router.forwarder import Forwarder
from rayllm.serving.router.guard.guard import Guard
from rayllm.serving.router.guard.moderations import ModerationsApi
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.http.errors import install_error_handlers
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.router.model_registry import ModelRegistry
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.quarantine import Quarantine
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.router.services import RouterServices
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.telemetry.telemetry import Telemetry
from rayllm.serving.wire import exchange
from rayllm.serving.wire.handover.channel import Channel, Kind, Message
from rayllm.serving.wire.handover.receiver import Receiver
from rayllm.serving.wire.listener.listener import LocalListener
from rayllm.serving.wire.record import CLIENT_LEFT, RequestRecord
from rayllm.serving.wire.relay.reply import RelayedReplyMiddleware
from rayllm.serving.wire.relay.transport import HttpTransport
from rayllm.serving.wire.wire import Wire

PATH = "/v1/chat/completions"
FORM_PATH = "/v1/audio/transcriptions"


class Count:
    """A fake of Ray Serve's count."""

    def __init__(self) -> None:
        self.capacity = 10
        self.held: set[str] = set()

    def add(self) -> str:
        self.held.add(token := uuid.uuid4().hex)
        return token

    def remove(self, token: str) -> None:
        self.held.remove(token)


class AdapterPool:
    """The adapters of a fake replica."""

    def __init__(self, *there: str, everything: bool = False) -> None:
        self.there, self.everything = there, everything
        self.asked: list[str] = []

    async def missing(self, names: list[str]) -> list[str]:
        self.asked += names
        return [] if self.everything else [name for name in names if name not in self.there]


class Replica:
    """A model replica without an engine: `answer` is its ASGI application."""

    def __init__(self, answer: Any, residents: Any = None) -> None:
        self.count = Count()
        self.key = "secret"
        self.address = "http://127.0.0.1:9"
        self.has_died: Any = lambda: False
        slots = Slots(self.count)
        self.gate = DrainGate(SlotGate(answer, slots), lambda: self.has_died())
        self.receiver = Receiver(self.gate)
        slots.on_slot_freed = self.receiver.notify_slot_free
        adapter_pool: Any = residents or AdapterPool(everything=True)
        app = RouterGate(RelayedReplyMiddleware(self.gate), self.key, adapter_pool, {})
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Replica]:
        self.receiver.start()
        task = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.01)
        self.address = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.receiver.close()
            self.server.should_exit = True
            self.server.force_exit = True
            await task

    def replica_update(self, replica_id: str) -> ReplicaUpdate:
        metadata = {"address": self.address, "key": self.key, "socket": str(self.receiver.path), "node_id": "here"}
        return ReplicaUpdate(replica_id, self.count.capacity, metadata, {})


class DyingReplica:
    """A replica that announces its reply, writes some bytes of it, and dies as by `kill -9`.

    Args:
        written: how many bytes it writes.
        is_stream: whether it announces a stream.
    """

    REPLY = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"from": 0}\n'

    def __init__(self, written: int, is_stream: bool = False) -> None:
        self._written = written
        self._is_stream = is_stream
        self._path = socket_folder() / f"{uuid.uuid4().hex}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[DyingReplica]:
        self._socket.setblocking(False)
        self._socket.bind(str(self._path))
        self._socket.listen()
        accepting = asyncio.create_task(self._accept())
        try:
            yield self
        finally:
            await accepting

    async def _accept(self) -> None:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self._socket)

        def answer(message: Message) -> None:
            head = {} if self._is_stream else {"size": len(self.REPLY)}
            channel.send(Message(Kind.STARTED, message.number, head))
            with socket.socket(fileno=message.files[0]) as client:
                client.send(self.REPLY[: self._written])
            for journal in message.files[1:]:
                os.close(journal)
            self._socket.close()
            channel.close()

        channel = Channel(accepted, answer, lambda: None)

    def replica_update(self, replica_id: str) -> ReplicaUpdate:
        metadata = {"address": "http://127.0.0.1:9", "key": "secret", "socket": str(self._path), "node_id": "here"}
        return ReplicaUpdate(replica_id, 10, metadata, {})


class Queue:
    """A fake of Ray Serve's count of queued requests."""

    def __init__(self) -> None:
        self.waiting = 0
        self.limit = -1
        self.is_available = True

    def enter(self) -> None:
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1


class Answer:
    """A scripted application: sends chunks, notices disconnects, and stops or breaks off where scripted."""

    def __init__(
        self,
        *chunks: bytes,
        pause_after: int | None = None,
        break_after: int | None = None,
        waits_for: asyncio.Event | None = None,
    ) -> None:
        self.chunks = chunks
        self.pause_after = pause_after
        self.break_after = break_after
        self.waits_for = waits_for
        self.begins_late = False
        self.left = asyncio.Event()
        self.status = 200
        self.stats: RequestStats | None = None
        self.takes_s = 0.0
        self.at_once = self.most_at_once = 0
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if source := StatsSource.in_scope(scope):
            source.read = lambda: self.stats
        self.bodies.append((await receive())["body"])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.takes_s)
        self.at_once -= 1
        if self.status != 200:
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b"plain text"})
            return
        await self._stream(receive, send)

    async def _stream(self, receive: Any, send: Any) -> None:
        stream = len(self.chunks) != 1 or self.pause_after == 0
        kind = b"text/event-stream" if stream else b"application/json"
        if self.pause_after != 0 and not self.begins_late:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for index, chunk in enumerate(self.chunks):
            if index == self.pause_after:
                assert (await receive())["type"] == "http.disconnect"
                self.left.set()
                return
            if index == self.break_after:
                raise ConnectionError("the engine fell over")
            if index and self.waits_for:
                await self.waits_for.wait()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


WAYS = pytest.mark.parametrize("way", ["http", "handover"])


class Recorder(Telemetry):
    """Keeps the records in order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.records: list[RequestRecord] = []

    def end(self, record: RequestRecord) -> None:
        super().end(record)
        self.records.append(record)


async def no_other_router(digest: str) -> None:
    """Tell nobody."""


class RouterApplication:
    """A router in front of replicas with adapters, all over real sockets."""

    def __init__(
        self, client: httpx.AsyncClient, replica_sets: dict[str, ReplicaSet], queues: dict[str, Queue]
    ) -> None:
        self.client, self.replica_sets, self.queues = client, replica_sets, queues
        self.records: list[RequestRecord] = []
        self.hooks = RequestHooks()
        self.forwarder: Forwarder

    async def record(self) -> RequestRecord:
        """The record of the only request, once it has ended."""
        await until(lambda: self.records)
        [record] = self.records
        return record


@asynccontextmanager
async def service(
    way: str,
    replicas: Mapping[str, Sequence[Replica | DyingReplica]],
    queue_timeout_s: float = 10,
    model: Mapping[str, Any] | None = None,
    **router: Any,
) -> AsyncIterator[RouterApplication]:
    fields = {"lora_config": {"dynamic_lora_loading_path": "/x"}, **(model or {})}
    models = [{"model_loading_config": {"model_id": name}, **fields} for name in replicas]
    config = load_app({"llm_configs": models, "router": router})
    queues = {name: Queue() for name in replicas}
    replica_sets = {
        name: ReplicaSet(name, queue, "here" if way == "handover" else "far", "least_loaded", queue_timeout_s)
        for name, queue in queues.items()
    }
    for name, listed in replicas.items():
        replica_sets[name].update([replica.replica_update(f"{name}-{index}") for index, replica in enumerate(listed)])
    transport = HttpTransport(connect_timeout_s=1)
    dispatcher = Dispatcher(replica_sets)
    lookup = AdapterLookup(partial(missing_adapters, dispatcher.replicas, transport))
    models = ModelRegistry(config)
    hooks = RequestHooks()
    await hooks.configure(config.router)
    telemetry = Recorder(RouterMetrics(dict), RecentRequests())

    async def ask(path: str, body: bytes, headers: Any, *, user: Any) -> Any:
        return await call(passing, path, body, headers, user=user)

    async def labels(model_id: str) -> list[str]:
        return ["safe", "violence", "spam"]

    guards = [Guard(each, ask, labels) for each in config.router.guards]
    services = RouterServices(
        Wire(transport),
        AdapterRegistry("app"),
        telemetry,
        RateLimiter(QuotaRegistry("app", "router")),
        Credentials(),
        Quarantine(no_other_router),
        hooks,
    )
    passing = Forwarder(config.router, models, dispatcher, lookup, services, guards)
    paths = (PATH, FORM_PATH, MESSAGES, RESPONSES, COMPLETIONS)
    app = FastAPI(routes=[Route(path, passing, methods=["POST"]) for path in paths])
    app.router.routes.append(Route(MODERATIONS, ModerationsApi(models, guards, hooks, telemetry), methods=["POST"]))
    install_error_handlers(app)
    listener = LocalListener("127.0.0.1", 0)
    front = HttpServer(app, listener, "", config.router)
    await front.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", timeout=10) as client:
            application = RouterApplication(client, replica_sets, queues)
            application.records = telemetry.records
            application.hooks = hooks
            application.forwarder = passing
            yield application
    finally:
        for replica_set in replica_sets.values():
            replica_set.close()
        await front.stop(2)
        await hooks.stop()
        await transport.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


@WAYS
async def test_a_plain_reply_comes_through_whole(way: str) -> None:
    answer = Answer(b'{"x": 1}')
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        sent = b'{"model": "m",  "messages": []}'
        reply = await found.client.post(PATH, content=sent, headers={"x-request-id": "r1"})
        assert (reply.status_code, reply.json(), reply.headers["x-request-id"]) == (200, {"x": 1}, "r1")
        assert answer.bodies == [sent]
        headers = dict(answer.scopes[0]["headers"])
        assert (headers[b"x-request-id"], headers[b"x-rayllm-model"]) == (b"r1", b"m")
        await until(lambda: not replica.count.held)


@WAYS
async def test_an_adapters_name_reaches_the_replica_and_a_clients_own_headers_do_not(way: str) -> None:
    answer = Answer(b"{}")
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        await found.client.post(PATH, json={"model": "m:x"}, headers={"x-rayllm-adapter-path": "/etc"})
        await found.client.post(PATH, json={"model": "m"}, headers={"x-rayllm-adapter": "x", "x-rayllm-key": "y"})
    internal_headers = [{k: v for k, v in scope["headers"] if k.startswith(b"x-rayllm-")} for scope in answer.scopes]
    assert all(int(headers.pop(b"x-rayllm-work")) > 0 for headers in internal_headers)
    assert {headers.pop(b"x-rayllm-key", b"secret") for headers in internal_headers} == {b"secret"}
    assert {headers.pop(b"x-rayllm-frames", b"1") for headers in internal_headers} == {b"1"}
    assert {headers.pop(b"x-rayllm-priority") for headers in internal_headers} == {b"standard"}
    assert internal_headers == [{b"x-rayllm-model": b"m:x", b"x-rayllm-adapter": b"x"}, {b"x-rayllm-model": b"m"}]


@WAYS
async def test_a_models_name_may_be_in_any_script(way: str) -> None:
    answer = Answer(b"{}")
    async with Replica(answer).listening() as replica, service(way, {"modèle-模型": [replica]}) as found:
        assert (await found.client.post(PATH, json={"model": "modèle-模型"})).status_code == 200
    assert dict(answer.scopes[0]["headers"])[b"x-rayllm-model"].decode() == "modèle-模型"


@WAYS
async def test_a_replica_that_is_full_does_not_lift_the_limit_of_time(way: str) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as replica,
        service(way, {"m": [replica]}, request_timeout_s=0.3) as found,
    ):
        replica.count.capacity = 0
        reply = await found.client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")


@WAYS
async def test_headers_that_steer_ray_serve_stop_at_the_router(way: str) -> None:
    answer = Answer(b"{}")
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        steering = {"authorization": "Bearer x", "x-request-timeout-seconds": "9", "serve-multiplexed-model-id": "y"}
        await found.client.post(PATH, json={"model": "m"}, headers=steering)
        given = {key.decode() for key, _ in answer.scopes[0]["headers"]}
        assert given.isdisjoint(steering)


@pytest.mark.parametrize("logged", [True, False])
async def test_prompts_are_logged_only_where_asked_for(logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as replica,
        service("http", {"m": [replica]}, log_prompts=logged) as found,
    ):
        with caplog.at_level("INFO", "rayllm"):
            await found.client.post(PATH, json={"model": "m", "messages": "a secret"})
            files = {"file": ("a.wav", b"sound of it", "audio/wav")}
            await found.client.post(FORM_PATH, data={"model": "m", "prompt": "another one"}, files=files)
    assert ("a secret" in caplog.text, "another one" in caplog.text) == (logged, logged)
    assert "sound of it" not in caplog.text


async def test_what_is_logged_of_a_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as replica,
        service("http", {"m": [replica]}, log_prompts=True) as found,
    ):
        with caplog.at_level("INFO", "rayllm"):
            forged = b'{"model": "m",\n"messages": "\xc2\x85\xe2\x80\xa8 \x7f\xe2\x80\xae gr\xc3\xbcn"}'
            await found.client.post(PATH, content=forged, headers={"content-type": "application/json"})
            await found.client.post(PATH, json={"model": "m\nINFO forged\x1b[2J", "messages": "x"})
            form = {"model": "m", "prompt": "x", "a\nb": "y"}
            files = {"file": ("a.wav", b"sound of it", "audio/wav")}
            await found.client.post(FORM_PATH, data=form, files=files)
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Request to")]
    assert [line for line in logged if len(line.splitlines()) > 1 or "\x1b" in line] == []
    assert logged[0] == r"""Request to `m`: {"model": "m",\n"messages": "\x85\u2028 \x7f\u202e grün"}"""
    assert len(logged) == 3


@WAYS
async def test_a_stream_comes_through_chunk_by_chunk(way: str) -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n")
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        reply = await found.client.post(PATH, json={"model": "m", "stream": True})
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.content == b"".join(answer.chunks)


@WAYS
async def test_a_client_that_leaves_a_stream_ends_it_in_the_replica(way: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = Answer(b"data: 1\n\n", b"never sent", pause_after=1)
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        async with found.client.stream("POST", PATH, json={"model": "m"}) as reply:
            assert await anext(reply.aiter_raw()) == b"data: 1\n\n"
        await asyncio.wait_for(answer.left.wait(), 2)
        await until(lambda: not replica.count.held)
        await until(lambda: found.records)
    gc.collect()
    assert "never retrieved" not in caplog.text


@WAYS
async def test_a_client_that_leaves_before_the_first_byte_ends_it_too(way: str) -> None:
    answer = Answer(b"never sent", pause_after=0)
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        with pytest.raises(httpx.ReadTimeout):
            await found.client.post(PATH, json={"model": "m"}, timeout=0.3)
        await asyncio.wait_for(answer.left.wait(), 2)
        await until(lambda: not replica.count.held)
        assert [replica.candidate.requests for replica in found.replica_sets["m"].replicas.values()] == [0]


@WAYS
async def test_no_answer_in_time_is_408_and_ends_it_in_the_replica(way: str) -> None:
    answer = Answer(b"never sent", pause_after=0)
    async with (
        Replica(answer).listening() as replica,
        service(way, {"m": [replica]}, request_timeout_s=0.2) as found,
    ):
        reply = await found.client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")
        await asyncio.wait_for(answer.left.wait(), 2)


@WAYS
async def test_a_reply_that_comes_after_its_time_never_mixes_with_the_408(way: str) -> None:
    """The replica writes into the same connection: it is stopped before the router answers."""
    late = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        if b"slow" in body:
            # It does not notice that nobody waits any more.
            await late.wait()
        await JSONResponse({"asked": body.decode()})(scope, receive, send)

    async with (
        Replica(answer).listening() as replica,
        service(way, {"m": [replica]}, request_timeout_s=1.0) as found,
    ):
        for _ in range(2):
            late.clear()
            assert (await found.client.post(PATH, json={"model": "m", "x": "slow"})).status_code == 408
            late.set()
            reply = await found.client.post(PATH, json={"model": "m", "x": "fast"})
            assert (reply.status_code, "fast" in reply.json()["asked"]) == (200, True)


@WAYS
async def test_a_replica_that_leaves_is_not_asked_again_and_loses_nothing(way: str) -> None:
    async with (
        Replica(Answer(b'{"from": 0}')).listening() as a,
        Replica(Answer(b'{"from": 1}')).listening() as b,
        service(way, {"m": [a, b]}) as found,
    ):
        a.gate.is_draining = True
        a.receiver.drain()
        replies = await asyncio.gather(*(found.client.post(PATH, json={"model": "m"}) for _ in range(20)))
        assert [reply.json() for reply in replies] == [{"from": 1}] * 20
        assert not found.replica_sets["m"].replicas["m-0"].is_open


@WAYS
async def test_requests_in_an_engine_that_dies_go_to_another_replica(way: str) -> None:
    died = asyncio.Event()

    async def dies(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await died.wait()
        await JSONResponse({"error": {"message": "EngineDeadError"}}, 500)(scope, receive, send)

    async with (
        Replica(dies).listening() as a,
        Replica(Answer(b'{"from": 1}')).listening() as b,
        service(way, {"m": [a]}) as found,
    ):
        a.has_died = died.is_set
        asked = [asyncio.create_task(found.client.post(PATH, json={"model": "m"})) for _ in range(8)]
        await until(lambda: len(a.count.held) == 8)
        found.replica_sets["m"].update([a.replica_update("m-0"), b.replica_update("m-1")])
        died.set()
        assert [(await reply).json() for reply in asked] == [{"from": 1}] * 8


@pytest.mark.parametrize(("written", "answered_by"), [(0, 1), (len(DyingReplica.REPLY), 0)])
async def test_a_reply_that_was_announced_is_sent_once(written: int, answered_by: int) -> None:
    async with (
        DyingReplica(written).listening() as dying,
        Replica(Answer(b'{"from": 1}')).listening() as other,
        service("handover", {"m": [dying]}) as found,
    ):
        asking = asyncio.create_task(found.client.post(PATH, json={"model": "m"}))
        await until(lambda: not found.replica_sets["m"].replicas["m-0"].is_open)
        found.replica_sets["m"].update([other.replica_update("m-1")])
        assert (await asking).json() == {"from": answered_by}
        # On the same connection.
        assert (await found.client.post(PATH, json={"model": "m"})).json() == {"from": 1}
        await until(lambda: [record.status for record in found.records] == [200, 200])


async def test_a_stream_that_was_announced_and_not_begun_goes_to_another_replica() -> None:
    async with (
        DyingReplica(0, is_stream=True).listening() as dying,
        Replica(Answer(b"data: 1\n\n", b"data: 2\n\n")).listening() as other,
        service("handover", {"m": [dying]}) as found,
    ):
        asking = asyncio.create_task(found.client.post(PATH, json={"model": "m", "stream": True, "n": 2}))
        await until(lambda: not found.replica_sets["m"].replicas["m-0"].is_open)
        found.replica_sets["m"].update([other.replica_update("m-1")])
        assert (await asking).text == "data: 1\n\ndata: 2\n\n"


async def test_a_reply_that_was_sent_in_part_is_cut() -> None:
    async with (
        DyingReplica(written=20).listening() as dying,
        service("handover", {"m": [dying]}) as found,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await found.client.post(PATH, json={"model": "m"})


@WAYS
async def test_a_replica_that_answers_500_fastest_of_all_does_not_draw_all_requests(way: str) -> None:
    """`least_loaded` prefers a replica whose engine is gone: it never has anything in hand."""
    well = Answer(b'{"from": 1}')
    well.takes_s = 0.02

    async def ill(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await JSONResponse({"error": {"message": "made up", "type": "server_error"}}, 500)(scope, receive, send)

    async with (
        Replica(ill).listening() as a,
        Replica(well).listening() as b,
        service(way, {"m": [a, b]}) as found,
    ):
        statuses = []
        for _ in range(20):
            replies = await asyncio.gather(*(found.client.post(PATH, json={"model": "m"}) for _ in range(10)))
            statuses += [reply.status_code for reply in replies]
        assert statuses.count(500) < 40
        assert statuses[-100:].count(500) < 10


@WAYS
@pytest.mark.parametrize(
    ("path", "begins"),
    [
        (PATH, 'data: {"error": {"message": "made up"'),
        (MESSAGES, 'event: error\ndata: {"type": "error", "error": {"message": "made up"'),
        (RESPONSES, 'event: error\ndata: {"type": "error", "code": "invalid_request_error", "message": "made up"'),
    ],
)
async def test_a_refusal_after_a_wait_has_the_shape_of_its_api(
    way: str, path: str, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_HEARTBEAT_S", 0.02)

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        body = error_body(RequestError("made up", "messages"), scope["path"])
        await JSONResponse(body, 400)(scope, receive, send)

    async with Replica(refuses).listening() as replica, service(way, {"m": []}) as found:
        async with found.client.stream("POST", path, json={"model": "m", "stream": True}) as reply:
            parts = reply.aiter_text()
            assert (await anext(parts)).startswith(": ")
            found.replica_sets["m"].update([replica.replica_update("new")])
            text = "".join([part async for part in parts])
        [event] = [event for event in text.split("\n\n") if event and not event.startswith(":")]
        assert event.startswith(begins)
        record = await found.record()
        assert (record.status, record.outcome) == (200, 400)


async def test_a_replica_that_breaks_off_in_mid_stream_is_told_as_an_event() -> None:
    for way in ("http", "handover"):
        answer = Answer(b"data: 1\n\n", b"data: 2\n\n", b"x", break_after=2)
        async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
            reply = await found.client.post(PATH, json={"model": "m", "stream": True})
            assert reply.status_code == 200
            *good, last, end = reply.text.split("\n\n")
            assert good[:2] == ["data: 1", "data: 2"]
            assert last.startswith('data: {"error"')
            assert '"type": "server_error"' in last
            assert end == ""


@WAYS
async def test_a_replica_that_dies_before_it_answers_is_500(way: str) -> None:
    answer = Answer(b"x", break_after=0, pause_after=None)
    answer.chunks = (b"x", b"y")
    answer.begins_late = True
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        reply = await found.client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")


@WAYS
async def test_a_model_where_too_many_wait_is_503_and_its_fallback_is_tried(way: str) -> None:
    async with Replica(Answer(b'{"from": "a"}')).listening() as a, Replica(Answer(b'{"from": "b"}')).listening() as b:
        a.count.capacity = 0
        async with service(way, {"a": [a], "b": [b]}) as found:
            found.queues["a"].limit = 0
            reply = await found.client.post(PATH, json={"model": "a"})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert reply.json()["error"]["type"] == "overloaded_error"
        async with service(way, {"a": [a], "b": [b]}, fallbacks={"a": ["b"]}) as found:
            found.queues["a"].limit = 0
            assert (await found.client.post(PATH, json={"model": "a"})).json() == {"from": "b"}


@WAYS
async def test_every_fallback_is_tried_in_turn(way: str) -> None:
    async with (
        Replica(Answer()).listening() as a,
        Replica(Answer()).listening() as b,
        Replica(Answer(b'{"from": "c"}')).listening() as c,
        service(way, {"a": [a], "b": [b], "c": [c]}, fallbacks={"a": ["b", "c"], "b": ["a"]}) as found,
    ):
        a.count.capacity = b.count.capacity = 0
        found.queues["a"].limit = found.queues["b"].limit = 0
        assert (await found.client.post(PATH, json={"model": "a"})).json() == {"from": "c"}
        c.count.capacity, found.queues["c"].limit = 0, 0
        assert (await found.client.post(PATH, json={"model": "a"})).status_code == 503


@WAYS
async def test_a_fallback_is_asked_by_its_own_name_and_not_for_the_adapter(way: str) -> None:
    """vLLM answers 404 to a name that it does not serve."""
    full, free = Answer(b"{}"), Answer(b"{}")
    full.status = 503
    async with Replica(full).listening() as a, Replica(free).listening() as b:
        async with service(way, {"a": [a], "b": [b]}, fallbacks={"a": ["b"]}) as found:
            assert (await found.client.post(PATH, json={"model": "a:y", "x": 1})).status_code == 200
        assert json.loads(free.bodies[0]) == {"model": "b", "x": 1}
        headers = dict(free.scopes[0]["headers"])
        assert headers[b"x-rayllm-model"] == b"b"
        assert b"x-rayllm-adapter" not in headers
        await until(lambda: not a.count.held and not b.count.held)


@WAYS
async def test_a_replica_that_other_routers_have_filled_is_left_for_another(way: str) -> None:
    async with (
        Replica(Answer(b'{"from": 0}')).listening() as a,
        Replica(Answer(b'{"from": 1}')).listening() as b,
        service(way, {"m": [a, b]}) as found,
    ):
        a.count.capacity = 0
        replies = await asyncio.gather(*(found.client.post(PATH, json={"model": "m"}) for _ in range(8)))
        assert [reply.json() for reply in replies] == [{"from": 1}] * 8


@WAYS
async def test_requests_beyond_all_room_wait_for_it_and_are_all_answered(way: str) -> None:
    answer = Answer(b"{}")
    answer.takes_s = 0.02
    async with Replica(answer).listening() as replica:
        replica.count.capacity = 2
        async with service(way, {"m": [replica]}) as found:
            replies = await asyncio.gather(*(found.client.post(PATH, json={"model": "m"}) for _ in range(20)))
            assert [reply.status_code for reply in replies] == [200] * 20
            assert answer.most_at_once == 2
            assert found.queues["m"].waiting == 0


async def test_who_waits_while_the_way_of_choosing_changes_is_answered_all_the_same() -> None:
    async with Replica(Answer(b"{}")).listening() as replica, service("http", {"m": []}) as found:
        asked = asyncio.create_task(found.client.post(PATH, json={"model": "m"}))
        await until(lambda: found.queues["m"].waiting == 1)
        found.replica_sets["m"].configure("session", 5)
        found.replica_sets["m"].update([replica.replica_update("new")])
        assert (await asked).status_code == 200


async def test_waiting_for_a_replica_has_an_end() -> None:
    async with service("http", {"m": []}, queue_timeout_s=0.3) as found:
        reply = await found.client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "30")
        assert found.queues["m"].waiting == 0


@WAYS
async def test_a_replica_that_comes_up_takes_those_who_wait(way: str) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, service(way, {"m": []}) as found:
        asked = [asyncio.create_task(found.client.post(PATH, json={"model": "m"})) for _ in range(5)]
        await until(lambda: found.queues["m"].waiting == 5)
        found.replica_sets["m"].update([replica.replica_update("new")])
        assert [(await reply).status_code for reply in asked] == [200] * 5


@WAYS
async def test_a_stream_that_waits_shows_that_somebody_is_there(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_HEARTBEAT_S", 0.02)
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n")
    async with (
        Replica(answer).listening() as replica,
        service(way, {"m": []}) as found,
        found.client.stream("POST", PATH, json={"model": "m", "stream": True}) as reply,
    ):
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        parts = reply.aiter_raw()
        assert (await anext(parts)).startswith(b": ")
        found.replica_sets["m"].update([replica.replica_update("new")])
        events = b"".join([part async for part in parts]).split(b"\n\n")
        assert [event for event in events if event and not event.startswith(b":")] == [b"data: 1", b"data: 2"]


async def test_a_stream_that_has_waited_too_long_is_told_so_as_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_HEARTBEAT_S", 0.02)
    async with service("http", {"m": []}, queue_timeout_s=0.2) as found:
        reply = await found.client.post(PATH, json={"model": "m", "stream": True})
        assert reply.status_code == 200
        assert json.loads(reply.text.split("data: ")[1])["error"]["code"] == "overloaded"
        record = await found.record()
        assert (record.status, record.refusal, record.outcome) == (200, "overloaded", 503)


@WAYS
@pytest.mark.parametrize("status", [403, 500])
async def test_what_is_no_error_object_becomes_one(way: str, status: int) -> None:
    answer = Answer(b"{}")
    answer.status = status
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        reply = await found.client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
        assert "plain text" not in reply.text


@WAYS
async def test_a_replica_that_is_gone_is_503(way: str) -> None:
    async with service(way, {"m": [Replica(Answer(b"{}"))]}, queue_timeout_s=0.5) as found:
        reply = await found.client.post(PATH, json={"model": "m"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")


@WAYS
async def test_another_replica_takes_what_one_that_is_gone_cannot(way: str) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as there,
        service(way, {"m": [Replica(Answer(b"{}")), there]}) as found,
    ):
        replies = await asyncio.gather(*(found.client.post(PATH, json={"model": "m"}) for _ in range(8)))
        assert [reply.status_code for reply in replies] == [200] * 8


@WAYS
async def test_bodies_are_held_up_to_a_bound_and_given_back(way: str) -> None:
    hold = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await hold.wait()
        await JSONResponse({})(scope, receive, send)

    async with (
        Replica(answer).listening() as replica,
        service(way, {"m": [replica]}, max_pending_body_bytes=10_000) as found,
    ):
        large = {"model": "m", "x": "y" * 6000}
        for _ in range(3):
            hold.clear()
            first = asyncio.create_task(found.client.post(PATH, json=large))
            await until(lambda: replica.count.held)
            refused = await found.client.post(PATH, json=large)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "router.max_pending_body_bytes" in refused.json()["error"]["message"]
            hold.set()
            assert (await first).status_code == 200
            assert (await found.client.post(PATH, json={"model": "m"})).status_code == 200


async def test_large_bodies_and_unknown_models_never_reach_a_replica() -> None:
    async with service("http", {"m": []}, max_body_bytes=1024) as found:
        client = found.client
        assert (await client.post(PATH, json={"model": "m", "x": "y" * 2000})).status_code == 413
        assert (await client.post(PATH, json={"model": "n"})).status_code == 404
        assert (await client.post(PATH, content=b"{")).status_code == 400
        assert (await client.post("/nope", json={})).json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("key", [None, "wrong", ""])
async def test_a_replicas_port_is_for_routers_alone(key: str | None) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, httpx.AsyncClient() as client:
        headers = {"x-rayllm-key": key} if key is not None else {}
        assert (await client.post(replica.address + PATH, json={}, headers=headers)).status_code == 403


async def test_a_model_that_leaves_while_it_answers_answers_to_the_end() -> None:
    rest = asyncio.Event()
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", waits_for=rest)
    async with (
        Replica(answer).listening() as replica,
        service("handover", {"m": [replica]}) as found,
        found.client.stream("POST", PATH, json={"model": "m"}) as reply,
    ):
        chunks = reply.aiter_raw()
        assert await anext(chunks) == b"data: 1\n\n"
        found.replica_sets["m"].update([])
        rest.set()
        assert await anext(chunks) == b"data: 2\n\n"


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_router_that_stops_writes_nothing_into_a_reply_that_a_replica_finishes(has_begun: bool) -> None:
    rest = asyncio.Event()
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n", waits_for=rest)

    async def late(scope: Any, receive: Any, send: Any) -> None:
        answer.scopes.append(scope)
        await rest.wait()
        await answer(scope, receive, send)

    async with (
        Replica(answer if has_begun else late).listening() as replica,
        service("handover", {"m": [replica]}) as found,
    ):
        asking = asyncio.create_task(found.client.post(PATH, json={"model": "m"}))
        await until(lambda: answer.scopes)
        if has_begun:
            [asked] = found.replica_sets["m"].replicas.values()
            assert asked.sender
            [handover] = asked.sender._handovers.values()
            await handover.started.wait()
        found.replica_sets["m"].close()
        # The router's own part of the request ends.
        await until(lambda: found.records)
        rest.set()
        reply = await asking
        assert (reply.status_code, reply.text) == (200, "data: 1\n\ndata: 2\n\n")


def test_router_options_have_finite_defaults() -> None:
    config = RouterConfig()
    assert config.request_timeout_s == 600
    assert config.max_body_bytes == 32 * 2**20


@WAYS
async def test_a_thousand_invented_adapters_take_no_slot_from_anybody(way: str) -> None:
    """Nobody may wait for a slot here, so that one invented name in a slot could cost another request its own."""
    answer, residents = Answer(b"{}"), AdapterPool("there")
    answer.takes_s = 0.05
    async with (
        Replica(answer, residents).listening() as replica,
        service(way, {"m": [replica]}, max_ongoing_requests=5000) as found,
    ):
        found.queues["m"].limit = 0
        url = str(found.client.base_url).rstrip("/") + PATH
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
    assert len(residents.asked) < 3 * 701


@WAYS
async def test_an_adapter_that_a_replica_has_is_not_looked_up(way: str) -> None:
    residents = AdapterPool()
    async with Replica(Answer(b"{}"), residents).listening() as replica, service(way, {"m": [replica]}) as found:
        update = replica.replica_update("m-0")
        update.stats["adapters"] = ["held"]
        found.replica_sets["m"].update([update])
        assert (await found.client.post(PATH, json={"model": "m:held"})).status_code == 200
        reply = await found.client.post(PATH, json={"model": "m:none"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert residents.asked == ["none"]


STATS = RequestStats(3, 1, 5, 0.5, 0.25, 2.0, "stop")


async def whole(scope: Any, receive: Any, send: Any) -> None:
    """Answers as vLLM does where no stream is asked for."""
    source = StatsSource.in_scope(scope)
    assert source
    source.read = lambda: STATS
    await JSONResponse({"x": 1})(scope, receive, send)


@WAYS
@pytest.mark.parametrize("stream", [False, True])
async def test_the_record_of_an_answered_request(way: str, stream: bool) -> None:
    answer = Answer(b"data: 1\n\n", b"data: 2\n\n")
    answer.stats = STATS
    async with Replica(answer if stream else whole).listening() as replica, service(way, {"m": [replica]}) as found:
        reply = await found.client.post(PATH, json={"model": "m:a"})
        assert reply.content == (b"data: 1\n\ndata: 2\n\n" if stream else b'{"x":1}')
        assert "x-rayllm-stats" not in reply.headers
        record = await found.record()
    assert (record.endpoint, record.model_id, record.adapter) == (PATH, "m", "a")
    assert (record.status, record.replica, record.attempts, record.stats) == (200, "m-0", 1, STATS)
    assert record.sent_at is not None
    assert record.first_byte_at is not None
    assert record.started_at <= record.sent_at <= record.first_byte_at <= record.ended_at


@WAYS
async def test_the_record_of_a_request_that_was_lost_with_a_replica(way: str) -> None:
    died = asyncio.Event()

    async def dies(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        died.set()
        await JSONResponse({"error": {"message": "EngineDeadError"}}, 500)(scope, receive, send)

    async with (
        Replica(dies).listening() as a,
        Replica(whole).listening() as b,
        service(way, {"m": [a]}) as found,
    ):
        a.has_died = died.is_set
        asked = asyncio.create_task(found.client.post(PATH, json={"model": "m"}))
        await died.wait()
        found.replica_sets["m"].update([a.replica_update("m-0"), b.replica_update("m-1")])
        assert (await asked).status_code == 200
        record = await found.record()
    assert (record.status, record.attempts, record.replica, record.stats) == (200, 2, "m-1", STATS)


@WAYS
async def test_a_request_that_replicas_die_of_is_refused_from_then_on(way: str) -> None:
    poison = {"model": "m", "prompt": "poison"}

    async def dies_of_poison(scope: Any, receive: Any, send: Any) -> None:
        if b"poison" in (await receive())["body"]:
            # What a replica answers when its engine has died.
            await Response(None, 503, {headers.LOST: "1"})(scope, receive, send)
        else:
            await JSONResponse({})(scope, receive, send)

    async with (
        Replica(dies_of_poison).listening() as a,
        Replica(dies_of_poison).listening() as b,
        Replica(dies_of_poison).listening() as c,
        service(way, {"m": [a, b, c]}) as found,
    ):
        for attempts in (2, 0):
            reply = await found.client.post(PATH, json=poison)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (500, "request_quarantined")
            assert reply.headers["x-should-retry"] == "false"
            await until(lambda: found.records)
            assert found.records.pop().attempts == attempts
        assert (await found.client.post(PATH, json={"model": "m", "prompt": "meat"})).status_code == 200


@WAYS
async def test_the_record_of_a_request_that_a_fallback_answered(way: str) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as a,
        Replica(Answer(b"{}")).listening() as b,
        service(way, {"a": [a], "b": [b]}, fallbacks={"a": ["b"]}) as found,
    ):
        found.queues["a"].limit = 0
        found.replica_sets["a"].update([])
        await found.client.post(PATH, json={"model": "a"})
        record = await found.record()
    assert (record.model_id, record.status, record.fallbacks) == ("b", 200, 1)


@WAYS
async def test_the_record_of_a_refused_request(way: str) -> None:
    async with Replica(Answer(b"{}")).listening() as replica, service(way, {"m": [replica]}) as found:
        assert (await found.client.post(PATH, json={"model": "none"})).status_code == 404
        record = await found.record()
    assert (record.status, record.model_id, record.attempts, record.sent_at) == (404, "", 0, None)


@WAYS
async def test_the_record_of_a_request_whose_client_left(way: str) -> None:
    answer = Answer(b"data: 1\n\n", b"x", pause_after=0)
    answer.stats = aborted = RequestStats(3, 0, 2, finish_reason="abort")
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        with pytest.raises(httpx.ReadTimeout):
            await found.client.post(PATH, json={"model": "m"}, timeout=0.5)
        record = await found.record()
    assert (record.status, record.first_byte_at) == (CLIENT_LEFT, None)
    # By HTTP, the router closes the connection, and hears no more: nobody knows what the reply took.
    assert (record.stats, record.tokens) == ((aborted, 5) if way == "handover" else (None, None))


async def test_a_tenant_takes_half_of_a_routers_requests_and_bytes() -> None:
    limits = {"max_pending_body_bytes": 10_000, "max_body_bytes": 4000}
    answer = Answer(b"data: 1\n\n", b"x", waits_for=(end := asyncio.Event()))
    async with (
        Replica(answer).listening() as replica,
        service("http", {"m": [replica]}, max_ongoing_requests=4, **limits) as found,
    ):

        def ask(tenant: str, size: int = 0) -> asyncio.Task[Any]:
            body = json.dumps({"model": "m", "prompt": "x" * size}).encode()
            caller = Caller(tenant, tenant)
            return asyncio.create_task(call(found.forwarder, COMPLETIONS, body, {}, user=caller))

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


async def test_a_replica_knows_whose_request_it_works_on() -> None:
    async def tells(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"tenant": current_tenant.get()})(scope, receive, send)

    async with Replica(tells).listening() as replica, service("http", {"m": [replica]}) as found:
        for tenant in ("a", "", "b"):
            caller = Caller(tenant, tenant)
            reply = await call(found.forwarder, PATH, b'{"model": "m"}', {}, user=caller)
            assert json.loads(reply.body) == {"tenant": tenant}


@WAYS
async def test_a_reply_that_takes_too_long_is_not_free(way: str) -> None:
    answer = Answer(b"data: 1\n\n", b"x", pause_after=0)
    answer.stats = RequestStats(3, 0, 2, finish_reason="abort")
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}, request_timeout_s=0.3) as found:
        assert (await found.client.post(PATH, json={"model": "m"})).status_code == 408
        record = await found.record()
    assert record.tokens == (5 if way == "handover" else None)


@WAYS
async def test_what_no_replica_has_worked_on_is_free(way: str) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"error": {"message": "no", "code": None}}, json.loads((await receive())["body"])["status"])(
            scope, receive, send
        )

    async with Replica(refuses).listening() as replica, service(way, {"m": [replica]}) as found:
        for model, status in (("m", 400), ("m", 503), ("none", 404)):
            assert (await found.client.post(PATH, json={"model": model, "status": status})).status_code == status
            await until(lambda: found.records)
            assert found.records.pop().tokens == 0


@pytest.mark.parametrize("way", ["handover", "http"])
async def test_a_relayed_stream_that_its_client_leaves_is_paid(way: str) -> None:
    answer = Answer(*[b"data: 1\n\n"] * 20, b"x", pause_after=20)
    answer.stats = generated = RequestStats(3, 0, 20, finish_reason="abort")
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        # Of another origin: the router adds headers to the reply.
        asked = found.client.stream("POST", PATH, json={"model": "m"}, headers={"origin": "https://example.com"})
        async with asked as reply:
            await anext(reply.aiter_bytes())
        record = await found.record()
    assert (record.stats, record.tokens) == (generated, 23)


@WAYS
async def test_the_record_of_a_client_that_left_in_the_middle(way: str) -> None:
    answer = Answer(b"data: 1\n\n", b"x", pause_after=1)
    async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
        async with found.client.stream("POST", PATH, json={"model": "m"}) as reply:
            assert await anext(reply.aiter_raw()) == b"data: 1\n\n"
        assert (await found.record()).status == 200


@WAYS
async def test_the_record_of_a_refusal_by_the_replica(way: str) -> None:
    refuses = JSONResponse(error_body(RequestError("made up"), PATH), 400)
    async with Replica(reading(refuses)).listening() as replica, service(way, {"m": [replica]}) as found:
        assert (await found.client.post(PATH, json={"model": "m"})).status_code == 400
        assert (await found.record()).status == 400


@WAYS
async def test_the_record_of_a_reply_in_place_of_the_replicas(way: str) -> None:
    fails = JSONResponse({"error": "internals"}, 503)
    async with Replica(reading(fails)).listening() as replica, service(way, {"m": [replica]}) as found:
        assert (await found.client.post(PATH, json={"model": "m"})).status_code == 503
        record = await found.record()
    assert (record.status, record.refusal) == (503, "overloaded")


def reading(reply: Response) -> Any:
    """An application that reads the request and sends this reply."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await reply(scope, receive, send)

    return app


POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "refusal"),
    [
        (POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\nz\r\n", 400, "invalid_request_error"),
        (POST + b"content-length: 3000\r\n\r\n{", 413, "request_too_large"),
        (POST + b"content-length: 300\r\n\r\n{", 408, "timeout"),
        (POST + b"content-length: 1\r\n\r\n{", 400, "invalid_request_error"),
    ],
    ids=["a wrong chunk", "too large", "too slow", "no JSON"],
)
async def test_the_record_of_a_body_that_is_refused(
    sent: bytes, status: int, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "rayllm"):
        async with service("http", {"m": []}, max_body_bytes=2000, body_timeout_s=0.2) as found:
            reader, writer = await asyncio.open_connection(found.client.base_url.host, found.client.base_url.port)
            writer.write(sent)
            assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
            record = await found.record()
            writer.close()
    assert (record.status, record.refusal) == (status, refusal)
    [line] = [text for text in caplog.messages if f" POST {PATH} " in text]
    assert f" POST {PATH} {status} " in line


@WAYS
async def test_the_record_of_a_bug(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ModelRegistry, "resolve", fail)
    async with service(way, {"m": []}) as found:
        assert (await found.client.post(PATH, json={"model": "m"})).status_code == 500
        record = await found.record()
    assert (record.status, record.refusal) == (500, "server_error")


@WAYS
async def test_the_line_of_a_client_that_left(way: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = Answer(b"never sent", pause_after=0)
    with caplog.at_level("INFO", "rayllm"):
        async with Replica(answer).listening() as replica, service(way, {"m": [replica]}) as found:
            with pytest.raises(httpx.ReadTimeout):
                await found.client.post(PATH, json={"model": "m"}, timeout=0.3)
            await found.record()
            await until(lambda: any(f" POST {PATH} {CLIENT_LEFT} " in line for line in caplog.messages))


class Gated:
    """An application that answers each request when it is told to: a word at once if it streams, the rest then."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.aborted: list[str] = []
        self.finish: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        name, done = body["user"], self.finish.setdefault(body["user"], asyncio.Event())
        self.started.append(name)
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if body.get("stream"):
            await send({"type": "http.response.body", "body": b"data: begun\n\n", "more_body": True})
        try:
            await done.wait()
        except asyncio.CancelledError:
            self.aborted.append(name)
            raise
        await send({"type": "http.response.body", "body": f"data: {name}\n\n".encode()})


class Priorities:
    """A router before one replica with a single slot, and clients of all classes."""

    def __init__(self, found: RouterApplication, app: Gated) -> None:
        self.found, self.app = found, app
        self.tasks: dict[str, asyncio.Task[httpx.Response]] = {}

    def ask(self, name: str, priority: str, stream: bool = False) -> None:
        body, headers = {"model": "m", "user": name, "stream": stream}, {"x-rayllm-priority": priority}
        self.tasks[name] = asyncio.create_task(self.found.client.post(PATH, json=body, headers=headers))

    async def started(self, *names: str) -> None:
        await until(lambda: self.app.started == list(names))

    async def waiting(self, count: int) -> None:
        await until(lambda: self.found.replica_sets["m"].waiting == count)

    async def finish(self, name: str) -> str:
        self.app.finish[name].set()
        reply = await self.tasks.pop(name)
        assert reply.status_code == 200
        return reply.text


@asynccontextmanager
async def priorities(way: str, slots: int = 1) -> AsyncIterator[Priorities]:
    app = Gated()
    replica = Replica(app)
    replica.count.capacity = slots
    async with replica.listening(), service(way, {"m": [replica]}) as found:
        yield Priorities(found, app)
        assert not replica.count.held


@WAYS
async def test_a_request_without_a_byte_out_makes_way_for_a_higher_class(way: str) -> None:
    async with priorities(way) as at:
        at.ask("batch", "batch")
        await at.started("batch")
        at.ask("chat", "interactive")
        await at.started("batch", "chat")
        assert at.app.aborted == ["batch"]
        assert "chat" in await at.finish("chat")
        await at.started("batch", "chat", "batch")
        assert "batch" in await at.finish("batch")
    [chat, batch] = at.found.records
    assert (chat.attempts, batch.attempts, batch.waited_for) == (1, 2, "requests of a higher class")


@WAYS
async def test_a_reply_that_has_begun_is_never_broken_off_for_another(way: str) -> None:
    async with priorities(way) as at:
        at.ask("stream", "batch", stream=True)
        await at.started("stream")
        at.ask("chat", "interactive")
        await at.waiting(1)
        await asyncio.sleep(0.3)
        assert at.app.started == ["stream"]
        assert await at.finish("stream") == "data: begun\n\ndata: stream\n\n"
        await at.started("stream", "chat")
        await at.finish("chat")


@WAYS
async def test_only_lower_classes_make_way_the_last_of_the_lowest_first(way: str) -> None:
    async with priorities(way, slots=3) as at:
        for index, (name, priority) in enumerate([("s", "standard"), ("b1", "batch"), ("b2", "batch")]):
            at.ask(name, priority)
            await until(lambda index=index: len(at.app.started) == index + 1)
        at.ask("s2", "standard")
        await at.started("s", "b1", "b2", "s2")
        assert at.app.aborted == ["b2"]
        at.ask("i", "interactive")
        await at.started("s", "b1", "b2", "s2", "i")
        assert at.app.aborted == ["b2", "b1"]
        at.ask("i2", "interactive")
        await at.started("s", "b1", "b2", "s2", "i", "i2")
        assert at.app.aborted == ["b2", "b1", "s2"]
        # Those put back come again in the order of their classes, and of their arrival.
        for name in ("i", "i2", "s"):
            await at.finish(name)
        await until(lambda: sorted(at.app.started[6:]) == ["b1", "b2", "s2"])
        for name in ("s2", "b1", "b2"):
            await at.finish(name)


@WAYS
async def test_a_request_is_put_back_three_times_at_most(way: str) -> None:
    async with priorities(way) as at:
        at.ask("batch", "batch")
        for number in range(3):
            await until(lambda number=number: at.app.started.count("batch") == number + 1)
            at.ask(f"chat{number}", "interactive")
            await until(lambda number=number: f"chat{number}" in at.app.started)
            await at.finish(f"chat{number}")
        await until(lambda: at.app.started.count("batch") == 4)
        at.ask("last", "interactive")
        await at.waiting(1)
        await asyncio.sleep(0.3)
        assert "last" not in at.app.started
        await at.finish("batch")
        await until(lambda: "last" in at.app.started)
        await at.finish("last")


async def test_queued_requests_go_by_class_and_then_in_order() -> None:
    async with priorities("handover") as at:
        at.ask("first", "interactive")
        await at.started("first")
        for number, (name, priority) in enumerate([("b", "batch"), ("s1", "standard"), ("s2", "standard"), ("i", "")]):
            at.ask(name, priority or "interactive")
            await at.waiting(number + 1)
        order = ["first", "i", "s1", "s2", "b"]
        for name in order:
            await until(lambda name=name: at.app.started[-1] == name)
            await at.finish(name)
        assert at.app.started == order


async def test_an_unknown_class_is_400() -> None:
    async with priorities("handover") as at:
        reply = await at.found.client.post(PATH, json={"model": "m"}, headers={"x-rayllm-priority": "urgent"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "x-rayllm-priority"
        assert "`interactive`, `standard`, `batch`" in reply.json()["error"]["message"]
