"""The router's application behind its own server: who is answered, and at which paths."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rayllm.access import Key, Keyring
from rayllm.access.key import key_hash
from rayllm.config import load_app
from rayllm.core.endpoints import CHAT
from rayllm.serving.router.application import RouterApplication
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.server import HttpServer
from rayllm.serving.router.readiness import Deployments, Readiness
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.services import RouterServices
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.telemetry.telemetry import Telemetry
from rayllm.serving.router.ui.pages import page_routes
from rayllm.serving.wire.listener.listener import LocalListener
from rayllm.serving.wire.wire import Wire
from tests.fakes.adapter_registry import AdapterRegistry

SALT = b"s" * 32
ALICE, BOB, SCRAPER = ({"authorization": f"Bearer sk-{name}"} for name in ("alice", "bob", "scraper"))
KEYS = [
    Key(name="alice", hash=key_hash("sk-alice", SALT)),
    Key(name="bob", hash=key_hash("sk-bob", SALT), models=("a",)),
    Key(name="scraper", hash=key_hash("sk-scraper", SALT), scrape=True),
]
KEYED: dict[str, Any] = {"keys": "/keys.yaml"}
# Nobody has this model, so a request that gets as far is 404.
POSTED: dict[str, Any] = {"model": "none", "messages": [{"role": "user", "content": "x"}]}


class Credentials:
    issuer = None
    keyring = Keyring(SALT, KEYS)


async def scheme(request: Request) -> Response:
    """What a handler sees of the connection."""
    return JSONResponse([request.url.scheme, request.client and request.client.host])


async def metrics(request: Request) -> Response:
    return Response("up 1\n")


class Service:
    """A client of the running service."""

    def __init__(self, port: int, http: httpx.AsyncClient) -> None:
        self.host = f"127.0.0.1:{port}"
        self._http = http

    async def ask(self, method: str, path: str, json: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._http.request(method, f"http://{self.host}{path}", json=json, headers=named)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.ask("GET", path, **headers)

    async def post(self, **headers: str) -> int:
        return (await self.ask("POST", CHAT, POSTED, **headers)).status_code


@asynccontextmanager
async def service(*running: str, prefix: str = "", **router: Any) -> AsyncIterator[Service]:
    """The service with the models `a` and `b`."""
    models = [{"model_loading_config": {"model_id": name}} for name in ("a", "b")]
    config = load_app({"llm_configs": models, "router": router})
    statuses = Deployments({"A": "healthy", "B": "updating"}, {})
    readiness = Readiness(config, {"a": "A", "b": "B"}, lambda model: model in running, lambda: statuses)
    absent = cast(Any, None)
    services = RouterServices(
        Wire(absent),
        cast(Any, AdapterRegistry()),
        Telemetry(RouterMetrics(dict), RecentRequests()),
        absent,
        cast(Any, Credentials()),
        absent,
        RequestHooks(),
    )
    application = RouterApplication(
        config,
        services,
        Dispatcher({}),
        readiness,
        {},
        AdminKeys([]),
        [Route("/metrics", metrics), Route("/v1/usage", scheme)],
        page_routes(),
    )
    listener = LocalListener("127.0.0.1", 0)
    server = HttpServer(application.app, listener, prefix, config.router)
    await server.start()
    try:
        async with httpx.AsyncClient() as http:
            yield Service(listener.port, http)
    finally:
        await server.stop(1)


LOCAL = (
    "127.0.0.1",
    "localhost:8000",
    "LocalHost",
    "127.9.9.9:1",
    "[::1]:8000",
    "[::1]",
    "chat.localhost:80",
    "localhost.",
)
FOREIGN = ("evil.example", "evil.example:8000", "192.0.2.1", "127.0.0.1.evil.example", "localhost.evil.example",
           "[2001:db8::1]:80", "x@localhost", "127.1", "127.0.0.1:80:80", "[evil.example]")  # fmt: skip


async def test_without_keys_a_host_that_is_not_this_machine_is_refused() -> None:
    async with service() as found:
        for host in LOCAL:
            assert (await found.get("/health", host=host)).status_code == 200, host
        for host in FOREIGN:
            for method, path in (("GET", "/v1/models"), ("GET", "/health"), ("POST", CHAT), ("OPTIONS", CHAT)):
                reply = await found.ask(method, path, host=host)
                assert reply.status_code == 403, host
                error = reply.json()["error"]
                assert (error["code"], error["param"]) == ("permission_denied", None)
                assert "router.allowed_hosts" in error["message"]


async def test_other_hosts_are_answered_where_the_configuration_says_so() -> None:
    async with service(allowed_hosts=["chat.example.com", "2001:db8::1"]) as found:
        for host in ("chat.example.com", "Chat.Example.com:443", "[2001:db8::1]:80", "localhost"):
            assert (await found.get("/health", host=host)).status_code == 200
        assert (await found.get("/health", host="x.chat.example.com")).status_code == 403
    for router in ({"allow_anyone": True}, KEYED):
        async with service(**router) as found:
            assert (await found.get("/health", host="evil.example")).status_code == 200
    async with service(**KEYED) as found:
        assert await found.post(origin="http://evil.example", host="evil.example", **ALICE) == 404


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "https://127.0.0.1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "cross-site", "origin": "http://evil.example", "content_type": "text/plain"},
    ],
)
async def test_a_page_of_another_origin_changes_nothing(sent: dict[str, str]) -> None:
    async with service() as found:
        for method, path in (("POST", CHAT), ("POST", "/v1/load_lora_adapter"), ("DELETE", "/v1/responses/x")):
            reply = await found.ask(method, path, **sent)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied")
            assert "router.cors" in reply.json()["error"]["message"]
        # The browser keeps replies from it.
        reply = await found.get("/v1/models", **sent)
        assert (reply.status_code, "access-control-allow-origin" in reply.headers) == (200, False)
    async with service(allow_anyone=True) as found:
        assert await found.post(**sent) == 404


async def test_the_own_page_and_programs_may() -> None:
    async with service() as found:
        own = {"origin": f"http://{found.host}", "sec_fetch_site": "same-origin"}
        for sent in ({}, own, {"sec_fetch_site": "none"}, {"sec_fetch_site": "same-origin"}):
            assert await found.post(**sent) == 404
        assert (await found.get("/ui", host="localhost:1", sec_fetch_site="cross-site")).status_code == 200


async def test_origins_of_cors_may() -> None:
    async with service(cors={"allow_origins": ["https://chat.example.com"]}) as found:
        assert await found.post(origin="https://chat.example.com", sec_fetch_site="cross-site") == 404
        assert await found.post(origin="https://evil.example", sec_fetch_site="cross-site") == 403
        assert await found.post(origin="null") == 403
    async with service(cors={"allow_origins": ["*"]}) as found:
        assert await found.post(origin="https://evil.example", sec_fetch_site="cross-site") == 404


async def test_forwarded_headers_count_from_trusted_proxies_alone() -> None:
    forwarded = {"x_forwarded_proto": "https", "x_forwarded_for": "198.51.100.7, 10.0.0.1"}
    for trusted, seen in (([], ["http", "127.0.0.1"]), (["10.0.0.0/8"], ["http", "127.0.0.1"]),
                          (["127.0.0.1", "10.0.0.0/8"], ["https", "198.51.100.7"])):  # fmt: skip
        async with service(trusted_proxies=trusted) as found:
            assert (await found.get("/v1/usage", **forwarded)).json() == seen
            origin = {"origin": f"https://{found.host}", "x_forwarded_proto": "https"}
            assert await found.post(**origin) == (404 if seen[0] == "https" else 403)


async def test_the_log_has_the_address_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "rayllm"):
        async with service(trusted_proxies=["127.0.0.1"]) as found:
            await found.get("/health", x_forwarded_for="198.51.100.7")
            await found.get("/version")
    assert [" ".join(line.split()[1:5]) for line in caplog.messages] == [
        "198.51.100.7 GET /health 200",
        "127.0.0.1 GET /version 200",
    ]


async def test_without_a_key_ready_says_the_state_alone() -> None:
    stranger: list[dict[str, str]] = [{}, {"authorization": "Bearer wrong"}, SCRAPER]
    async with service("a", "b", **KEYED) as found:
        for sent in stranger:
            reply = await found.get("/ready", **sent)
            assert (reply.status_code, reply.json()) == (200, {"status": "ready"})
        assert (await found.get("/ready", **ALICE)).json()["models"] == ["a", "b"]
        assert (await found.get("/ready", **BOB)).json()["models"] == ["a"]
    async with service("a", **KEYED) as found:
        for sent in stranger:
            reply = await found.get("/ready", **sent)
            assert (reply.status_code, reply.json().keys()) == (503, {"error"})
            assert (reply.json()["error"]["message"], reply.headers["retry-after"]) == ("Not ready.", "5")
        assert "`b`: it has no running replica" in (await found.get("/ready", **ALICE)).json()["error"]["message"]
        assert (await found.get("/ready", **BOB)).json()["phases"] == {"a": "running"}
    async with service("a") as found:
        assert (await found.get("/ready")).json()["phases"] == {"a": "running", "b": "waiting"}


async def test_a_key_that_scrapes_reads_metrics_and_nothing_else() -> None:
    async with service("a", "b", **KEYED) as found:
        assert (await found.get("/metrics", **SCRAPER)).text == "up 1\n"
        assert (await found.get("/metrics/", **SCRAPER)).status_code == 200
        assert (await found.get("/metrics")).status_code == 401
        for path in ("/v1/models", "/version", "/v1/usage", "/v1/keys", "/none", "/openapi.json"):
            reply = await found.get(path, **SCRAPER)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied"), path
        assert await found.post(**SCRAPER) == 403


async def test_open_paths_need_no_key_and_tell_one() -> None:
    async with service("a", "b", open_paths=["/metrics", "/v1/models"], **KEYED) as found:
        assert (await found.get("/metrics")).status_code == 200
        ids = [[card["id"] for card in (await found.get("/v1/models", **sent)).json()["data"]] for sent in ({}, BOB)]
        assert ids == [["a", "b"], ["a"]]
        for path in ("/version", "/v1/usage"):
            assert (await found.get(path)).status_code == 401
        assert await found.post() == 401


ANSWERED = (
    "/v1/models",
    "/v1/models/a",
    "/health",
    "/ready",
    "/version",
    "/metrics",
    "/openapi.json",
    "/ui",
    "/v1/usage",
)


@pytest.mark.parametrize("prefix", ["", "/demo"])
async def test_head_answers_like_get(prefix: str) -> None:
    async with service("a", "b", prefix=prefix) as found:
        for path in (*ANSWERED, "/v1/models/none", "/none", "/v1/responses/x"):
            got, headed = [await found.ask(method, prefix + path) for method in ("GET", "HEAD")]
            assert (headed.status_code, headed.content) == (got.status_code, b""), path
            for headers in (got.headers, headed.headers):
                assert headers.pop("request-id") == headers.pop("x-request-id")
            assert headed.headers == got.headers
        assert (await found.ask("HEAD", prefix + CHAT)).status_code == 405


@pytest.mark.parametrize("prefix", ["", "/demo"])
async def test_needless_slashes_are_ignored_and_never_redirected(prefix: str) -> None:
    async with service("a", "b", prefix=prefix) as found:
        for path in ANSWERED:
            wanted = await found.get(prefix + path)
            for odd in (f"{path}//", f"/{path}", f"{path}%2F", path.replace("/", "//"), f"{path}/?x=1"):
                if path == "/ui" and odd != "//ui":
                    continue
                reply = await found.get(prefix + odd)
                assert (reply.status_code, reply.content) == (wanted.status_code, wanted.content), odd
        for odd in (f"{CHAT}/", f"/{CHAT}", CHAT.replace("/", "//")):
            reply = await found.ask("POST", prefix + odd, POSTED)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        for odd in ("/none/", "//none"):
            reply = await found.get(prefix + odd)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
        # The page's relative addresses would lead elsewhere from there; it names neither scheme nor host.
        for odd in ("/ui/", "//ui//"):
            reply = await found.get(prefix + odd)
            assert (reply.status_code, reply.headers["location"]) == (308, "../ui")


async def test_needless_slashes_open_nothing() -> None:
    async with service(**KEYED) as found:
        for path in ("//health/../v1/models", "/health//v1/models", "/v1//models/", "/health/x", "//v1/usage"):
            assert (await found.get(path)).status_code == 401, path
        assert (await found.get("//health/")).status_code == 200
