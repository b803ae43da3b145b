"""A reverse proxy that injects faults of networks and stores."""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from tests.servers.listener import Handler, Listener

Kind = Literal["status", "reset", "truncate", "flip", "stall", "drip", "ignore_range", "redirect"]

_PIECE = 64 * 1024
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 429: "TooManyRequests", 503: "SlowDown"}


@dataclass(frozen=True)
class Seen:
    """A received request and the status of its response."""

    method: str
    path: str  # without the query
    query: str
    range: str | None
    authorization: str | None
    status: int


@dataclass
class _Rule:
    """A fault or callback for matching requests: `times` of them after the first `skip`."""

    path: re.Pattern[str]
    method: str | None
    times: int | None
    skip: int = 0
    kind: Kind | None = None
    value: float | str | None = None
    after_bytes: int = 0
    call: Callable[[str, str], object] | None = None

    def take(self, method: str, target: str) -> bool:
        """Whether the rule applies to this request; counts it."""
        if (self.method and self.method != method) or not self.path.search(target) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FaultProxy:
    """A reverse proxy that keeps connections alive, streams bodies and forwards `Host` and `Range`; or one with TLS."""

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream.rstrip("/")
        self._listener = Listener(partial(_Proxying, self))
        self.url = self._listener.url
        if tls:
            self._listener.socket = tls.wrap_socket(
                self._listener.socket, server_side=True, do_handshake_on_connect=False
            )
            self.url = self.url.replace("http:", "https:")
        self.leaving = threading.Event()
        self._rules: list[_Rule] = []
        self._seen: list[Seen] = []
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leaving.set()
        self._listener.stop()

    @property
    def requests(self) -> list[Seen]:
        """All requests so far, in the order of their responses."""
        with self._lock:
            return list(self._seen)

    @property
    def bytes_sent(self) -> Counter[str]:
        """Body bytes sent so far, by path without query."""
        with self._lock:
            return Counter(self._sent)

    @property
    def connections(self) -> int:
        """Number of connections accepted so far."""
        return self._listener.connections

    def fault(
        self,
        kind: Kind,
        path: str = "",
        *,
        value: float | str | None = None,
        times: int | None = None,
        skip: int = 0,
        after_bytes: int = 0,
        method: str | None = "GET",
    ) -> None:
        """Inject a fault into requests whose path and query match the regular expression `path`.

        The first `skip` of them pass, then `times` fail (all if None). The first matching rule applies. `value` depends
        on the kind:

        - `status`: respond with this status (500) and an S3 error in XML;
        - `reset`: reset the connection after `after_bytes` of the body; the client may lose the last of them;
        - `truncate`: close the connection after `after_bytes`, before the end of the body;
        - `flip`: corrupt the byte at `after_bytes` of the body;
        - `stall`: send nothing for `value` seconds (60) after `after_bytes`, then the rest;
        - `drip`: send `value` bytes per second (1000);
        - `ignore_range`: respond with the whole body and 200;
        - `redirect`: respond with 302 to `value` (the same path upstream).
        """
        self._add(_Rule(re.compile(path), method, times, skip, kind, value, after_bytes))

    def on_request(
        self, call: Callable[[str, str], object], path: str = "", *, nth: int = 1, method: str | None = "GET"
    ) -> None:
        """Call once, with method and path including the query, before the nth matching request is forwarded."""
        self._add(_Rule(re.compile(path), method, 1, nth - 1, call=call))

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def called(self, method: str, target: str) -> list[Callable[[str, str], object]]:
        """Callbacks for this request."""
        with self._lock:
            return [rule.call for rule in self._rules if rule.call is not None and rule.take(method, target)]

    def failing(self, method: str, target: str) -> _Rule | None:
        """The fault for this request."""
        with self._lock:
            return next((rule for rule in self._rules if rule.kind and rule.take(method, target)), None)

    def saw(self, request: Seen) -> None:
        """Record a request."""
        with self._lock:
            self._seen.append(request)

    def sent(self, path: str, size: int) -> None:
        """Record sent body bytes."""
        with self._lock:
            self._sent[path] += size

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)


class _Proxying(Handler):
    """Handles the requests of one connection."""

    def __init__(self, proxy: FaultProxy, *args: object) -> None:
        self._proxy = proxy
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        body = self.body()
        for call in self._proxy.called(self.command, self.path):
            call(self.command, self.path)
        rule = self._proxy.failing(self.command, self.path)
        if rule is not None and rule.kind == "status":
            self._refuse(int(rule.value or 500))
        elif rule is not None and rule.kind == "redirect":
            self._saw(302)
            self.reply(302, {"Location": str(rule.value or f"{self._proxy.upstream}{self.path}")})
        else:
            self._pass_on(body, rule)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _refuse(self, status: int) -> None:
        code = _CODES.get(status, "InternalError")
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>Injected.</Message></Error>'
        self._saw(status)
        self.reply(status, {"Content-Type": "application/xml"}, text.encode())

    def _pass_on(self, body: bytes, rule: _Rule | None) -> None:
        connection = http.client.HTTPConnection(urlsplit(self._proxy.upstream).netloc)
        try:
            connection.request(self.command, self.path, body or None, self._headers(body, rule))
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            return self._refuse(502)
        try:
            self._answer(answer, rule)
        finally:
            connection.close()

    def _headers(self, body: bytes, rule: _Rule | None) -> dict[str, str]:
        left_out = _HOP_BY_HOP | {"expect", "content-length"}
        if rule is not None and rule.kind == "ignore_range":
            left_out = left_out | {"range", "if-range"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        if self.command in ("PUT", "POST", "PATCH"):
            headers["Content-Length"] = str(len(body))
        return headers

    def _answer(self, answer: http.client.HTTPResponse, rule: _Rule | None) -> None:
        self._saw(answer.status)
        pieces = iter(partial(answer.read1, _PIECE), b"")
        empty = self.command == "HEAD" or answer.status in (204, 304)
        length = answer.headers.get("content-length")
        if length is None and not empty:
            # Listings and errors have no length, and are small.
            whole = answer.read()
            length, pieces = str(len(whole)), iter([whole])
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        if not empty:
            self._send(pieces, int(length or 0), rule)

    def _send(self, pieces: Iterator[bytes], length: int, rule: _Rule | None) -> None:
        sent = 0
        for piece in pieces:
            place = min(rule.after_bytes, length - 1) - sent if rule is not None else -1
            if rule is not None and rule.kind == "drip":
                self._drip(piece, float(rule.value or 1000))
            elif rule is None or rule.kind == "ignore_range" or not 0 <= place < len(piece):
                self._write(piece)
            elif rule.kind == "flip":
                self._write(piece[:place] + bytes([piece[place] ^ 0xFF]) + piece[place + 1 :])
            else:
                self._write(piece[:place])
                if not self._goes_on(rule):
                    return
                self._write(piece[place:])
            sent += len(piece)
        if sent < length:
            self.close_connection = True

    def _write(self, piece: bytes) -> None:
        # Counted first, so that a client that has the last byte finds it counted.
        self._proxy.sent(self.path.partition("?")[0], len(piece))
        self.wfile.write(piece)

    def _drip(self, piece: bytes, rate: float) -> None:
        step = max(1, int(rate / 20))
        for start in range(0, len(piece), step):
            part = piece[start : start + step]
            if self._proxy.leaving.wait(len(part) / rate):
                raise ConnectionAbortedError
            self._write(part)

    def _goes_on(self, rule: _Rule) -> bool:
        """Inject a fault in the middle of a body; whether the rest is sent."""
        self.wfile.flush()
        if rule.kind == "stall":
            return not self._proxy.leaving.wait(float(60 if rule.value is None else rule.value))
        self.close_connection = True
        if rule.kind == "reset":
            self._reset()
        return False

    def _reset(self) -> None:
        # Give the client time to read; a reset discards what it has not read.
        time.sleep(0.05)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def _saw(self, status: int) -> None:
        path, _, query = self.path.partition("?")
        ranges, authorization = self.headers.get("range"), self.headers.get("authorization")
        self._proxy.saw(Seen(self.command, path, query, ranges, authorization, status))
