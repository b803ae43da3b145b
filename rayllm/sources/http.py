"""Ranges of files over HTTP: one request, and the tries around it."""

from __future__ import annotations

import os
import random
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import certifi
import urllib3

from rayllm.errors import SourceError
from rayllm.sources.faults import ChangedError, DeniedError, UnreachableError
from rayllm.sources.items import Item, Target

_PIECE = 1024 * 1024
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
# The object is gone, or not the one that was listed: If-Match failed, or the range lies beyond its end.
_CHANGED = frozenset({404, 410, 412, 416})
_LONGEST_WAIT_S = 20.0
# A store may send elsewhere; urllib3 leaves the credentials out where that is another host. Tries are our own affair.
_REDIRECTS = urllib3.Retry(total=None, connect=False, read=False, redirect=3, status=0, other=0)

Write = Callable[[bytes, int], None]
"""Takes some bytes and the offset in the file at which they belong."""


class Client:
    """Fetches ranges over kept-alive connections; may be used from many threads.

    Args:
        connections: connections kept to one host.
        stall_s: seconds without a byte after which a try is given up.
        tries: tries in a row that bring nothing, until the place counts as unreachable.
        pause: waits so many seconds before the next try; may raise to end them.
    """

    def __init__(
        self,
        connections: int,
        stall_s: float = 20.0,
        tries: int = 6,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connections = connections
        self._timeout = urllib3.Timeout(connect=min(10.0, stall_s), read=stall_s)
        self._tries = tries
        self._pause = pause
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def fetch(self, locate: Callable[[bool], Target], item: Item, start: int, end: int, write: Write) -> None:
        """Write the bytes [start, end) of `item`, going on after a broken try where it broke off.

        Args:
            locate: the address to ask; called with True where the last one was refused. Its errors are final: a place
                tries by itself.

        Raises:
            ChangedError: the object is no more what was listed.
            SourceError: it cannot be had; the message names it.
        """
        at, failures, denied = start, 0, False
        while True:
            target = locate(denied)
            try:
                for piece in self._pieces(target, item, at, end):
                    write(piece, at)
                    at += len(piece)
                    failures, denied = 0, False
                if at == end:
                    return
                raise UnreachableError("the connection was closed early")
            except DeniedError:
                # An address may have expired; a new one that is refused as well is a refusal.
                if denied:
                    raise
                denied = True
            except UnreachableError as error:
                failures += 1
                if failures >= self._tries:
                    message = f"{item.key} could not be fetched in {failures} tries: {error.message}"
                    raise UnreachableError(message) from None
                self._pause(_wait_s(failures))

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for pool in self._pools.values():
                pool.clear()

    def _pieces(self, target: Target, item: Item, start: int, end: int) -> Iterator[bytes]:
        """One try: pieces of at most 1 MiB from `start` on. May end early where the connection does."""
        with self._get(target, item, start, end) as response:
            skip, left = (start if response.status == 200 else 0), end - start
            try:
                # What there is, not what fills a piece: a slow server is heard, and a broken try loses nothing.
                while left and (piece := response.read1(min(_PIECE, skip + left), decode_content=False)):
                    # A server that knows no ranges sends all from the beginning.
                    piece, skip = piece[skip:][:left], max(0, skip - len(piece))
                    if piece:
                        left -= len(piece)
                        yield piece
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise UnreachableError(_reason(error)) from None

    @contextmanager
    def _get(self, target: Target, item: Item, start: int, end: int) -> Iterator[urllib3.BaseHTTPResponse]:
        headers = {"accept-encoding": "identity", **target.headers, "range": f"bytes={start}-{end - 1}"}
        try:
            response = self._pool(target.url).request(
                "GET", target.url, headers=headers, preload_content=False, retries=_REDIRECTS, timeout=self._timeout
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(_reason(error)) from None
        try:
            _check(response, item, start)
            yield response
            # Only where all that was promised has been read can the connection serve again.
            response.close() if response.length_remaining else response.release_conn()
        except BaseException:
            response.close()
            raise

    def _pool(self, url: str) -> urllib3.PoolManager:
        """The pool for `url`: by way of the proxy that the environment names for its host."""
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            if place not in self._pools:
                self._pools[place] = _open_pool(parts.scheme, parts.hostname or "", self._connections)
            return self._pools[place]


def _open_pool(scheme: str, host: str, connections: int) -> urllib3.PoolManager:
    proxy = "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")
    # Reading certificates takes longer than a small download, so only who needs them does.
    options: dict[str, Any] = {"maxsize": connections}
    if "https" in (scheme, urlsplit(proxy).scheme):
        options["ssl_context"] = _trusted()
    return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)


def _check(response: urllib3.BaseHTTPResponse, item: Item, start: int) -> None:
    """Raise what the status means."""
    status = response.status
    if status in (200, 206):
        if _whole_size(response, start) not in (None, item.size):
            raise ChangedError(f"{item.key} was replaced while it was fetched: its size is not the listed one.")
        return
    if status in _CHANGED:
        raise ChangedError(f"{item.key} was removed or replaced while it was fetched.")
    if status in (400, 401, 403):  # S3 says 400 for a token that has expired
        raise DeniedError(f"{item.key} may not be read with these credentials (HTTP {status}).")
    if status in _TRANSIENT:
        raise UnreachableError(f"the server answered {status}")
    raise SourceError(f"{item.key} could not be fetched: the server answered {status}.")


def _whole_size(response: urllib3.BaseHTTPResponse, start: int) -> int | None:
    """Size in bytes of the whole file as the reply tells it.

    Raises:
        UnreachableError: the reply holds another range than the one asked for.
    """
    if response.status == 200:
        length = response.headers.get("content-length")
        return int(length) if length else None
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
    if not found or int(found[1]) != start:
        raise UnreachableError("the server answered with another range")
    return None if found[2] == "*" else int(found[2])


def _wait_s(failures: int) -> float:
    """Exponential backoff with full jitter, in seconds.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return random.uniform(0.1, min(_LONGEST_WAIT_S, 0.5 * 2**failures))


def _reason(error: Exception) -> str:
    """What broke, without addresses: those may hold signatures."""
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason:
        error = error.reason
    if isinstance(error, urllib3.exceptions.ReadTimeoutError | TimeoutError):
        return "the server sent nothing for too long"
    if isinstance(error, urllib3.exceptions.SSLError | ssl.SSLError):
        return f"TLS failed: {type(error).__name__}"
    return f"the connection broke ({type(error).__name__})"


@cache
def _trusted() -> ssl.SSLContext:
    """The system's certificates, Mozilla's, and the bundle that the usual variables name."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if bundle := os.environ.get(name):
            context.load_verify_locations(bundle)
            break
    return context
