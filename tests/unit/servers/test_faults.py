"""The proxy that makes answers fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import pytest
import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from tests.servers.faults import FaultProxy
from tests.servers.listener import Handler, Listener

BODY = bytes(range(256)) * 1024


class Upstream(Handler):
    """Answers with a body or the range of it that is asked for, and tells what it was sent."""

    heard: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.heard.append({name.lower(): value for name, value in self.headers.items()})
        asked = self.headers.get("range")
        if not asked:
            return self.reply(200, {}, BODY)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        return self.reply(206, {"Content-Range": f"bytes {first}-{last}/{len(BODY)}"}, BODY[first : last + 1])

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.reply(200, {}, self.body())


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    listener = Listener(Upstream)
    listener.start()
    yield listener.url
    listener.stop()


@pytest.fixture
def proxy(upstream: str) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as proxy:
        yield proxy


@pytest.fixture
def http() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False, timeout=5) as pool:
        yield pool


def test_it_passes_on_what_nothing_is_said_about(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    get = partial(http.request, "GET", f"{proxy.url}/a?b=c")
    assert get().data == BODY
    part = get(headers={"Range": "bytes=5-9", "Authorization": "me"})
    assert (part.status, part.data) == (206, BODY[5:10])
    assert Upstream.heard[-1]["host"] == proxy.url.removeprefix("http://")
    first, second = proxy.requests
    assert (first.method, first.path, first.query, first.range, first.status) == ("GET", "/a", "b=c", None, 200)
    assert (second.range, second.authorization, second.status) == ("bytes=5-9", "me", 206)
    assert proxy.bytes_sent == {"/a": len(BODY) + 5}
    assert http.request("HEAD", proxy.url).headers["content-length"] == str(len(BODY))
    assert http.request("PUT", proxy.url, body=b"put").data == b"put"
    assert http.request("PUT", proxy.url, body=iter([b"in ", b"chunks"])).data == b"in chunks"
    assert proxy.connections == 1


def test_status(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    proxy.fault("status", r"^/a$", value=503, times=2, skip=1)
    assert [http.request("GET", f"{proxy.url}/a").status for _ in range(4)] == [200, 503, 503, 200]
    assert http.request("GET", f"{proxy.url}/b").status == 200
    proxy.fault("status", method=None)
    failed = http.request("PUT", proxy.url, body=b"put")
    assert (failed.status, b"<Code>InternalError</Code>" in failed.data) == (500, True)
    proxy.clear()
    assert http.request("GET", proxy.url).status == 200
    assert proxy.connections == 1


def test_reset(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    proxy.fault("reset", after_bytes=1000)
    answer = http.request("GET", proxy.url, preload_content=False)
    assert answer.read(1000) == BODY[:1000]
    with pytest.raises(HTTPError, match="reset by peer"):
        answer.read()
    assert proxy.bytes_sent == {"/": 1000}


def test_truncate(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    proxy.fault("truncate", after_bytes=200_000)
    with pytest.raises(HTTPError, match="200000 bytes read, 62144 more expected"):
        http.request("GET", proxy.url)
    assert proxy.bytes_sent == {"/": 200_000}


@pytest.mark.parametrize("place", [0, 100_000, len(BODY) - 1])
def test_flip(proxy: FaultProxy, http: urllib3.PoolManager, place: int) -> None:
    proxy.fault("flip", after_bytes=place)
    data = http.request("GET", proxy.url).data
    assert [at for at, (sent, got) in enumerate(zip(BODY, data, strict=True)) if sent != got] == [place]


def test_stall(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    proxy.fault("stall", after_bytes=100_000, value=0.2, times=1)
    start = time.monotonic()
    assert http.request("GET", proxy.url).data == BODY
    assert time.monotonic() - start >= 0.2
    proxy.fault("stall", after_bytes=10)
    with pytest.raises(ReadTimeoutError):
        http.request("GET", proxy.url, timeout=0.2)


def test_drip(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    proxy.fault("drip", value=1000)
    start = time.monotonic()
    assert http.request("GET", proxy.url, headers={"Range": "bytes=0-299"}).data == BODY[:300]
    assert time.monotonic() - start >= 0.3


def test_ignore_range(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    proxy.fault("ignore_range")
    answer = http.request("GET", proxy.url, headers={"Range": "bytes=0-9"})
    assert (answer.status, answer.data) == (200, BODY)


def test_redirect(proxy: FaultProxy, http: urllib3.PoolManager, upstream: str) -> None:
    proxy.fault("redirect", times=1)
    answer = http.request("GET", f"{proxy.url}/a?b", redirect=False)
    assert (answer.status, answer.headers["location"]) == (302, f"{upstream}/a?b")
    proxy.fault("redirect", value=f"{upstream}/else", times=1)
    assert http.request("GET", f"{proxy.url}/a", redirect=False).headers["location"] == f"{upstream}/else"


def test_something_happens_before_a_request(proxy: FaultProxy, http: urllib3.PoolManager) -> None:
    calls: list[tuple[str, str, int]] = []
    proxy.on_request(lambda method, path: calls.append((method, path, len(proxy.requests))), "/a", nth=2)
    for _ in range(3):
        http.request("GET", f"{proxy.url}/a?b")
    assert calls == [("GET", "/a?b", 1)]


def test_a_server_that_is_not_there(http: urllib3.PoolManager) -> None:
    with FaultProxy("http://127.0.0.1:9") as proxy:
        assert http.request("GET", proxy.url).status == 502
