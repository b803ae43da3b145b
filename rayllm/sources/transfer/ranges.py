"""HTTP client for byte ranges of files, with retries that resume."""

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

from rayllm.core.errors import SourceError
from rayllm.sources.errors import ChangedError, DeniedError, UnreachableError
from rayllm.sources.items import Item, Location
from rayllm.sources.transfer.options import DownloadOptions

_CHUNK = 1024 * 1024
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
# Deleted or replaced since the listing: If-Match failed, or the range starts beyond the end.
_CHANGED = frozenset({404, 410, 412, 416})
_MAX_WAIT_S = 20.0
# urllib3 follows redirects, and drops credentials if the host differs. Retries are done here.
_REDIRECTS = urllib3.Retry(total=None, connect=False, read=False, redirect=3, status=0, other=0)

Write = Callable[[bytes, int], None]
"""Writes a chunk at an offset of the file."""


class RangeClient:
    """Fetches ranges over kept-alive connections. Thread-safe.

    `pause` sleeps for the given seconds before a retry; it may raise to stop retrying.
    """

    def __init__(self, options: DownloadOptions, pause: Callable[[float], None] = time.sleep) -> None:
        stall_s = min(options.stall_s, options.deadline_s or options.stall_s)
        self._timeout = urllib3.Timeout(connect=min(10.0, stall_s), read=stall_s)
        self._options = options
        self._pause = pause
        self._pools: dict[tuple[str, str | None], urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def fetch(self, locate: Callable[[bool], Location], item: Item, start: int, end: int, write: Write) -> None:
        """Write the bytes [start, end) of `item`. A retry continues after the last byte received.

        Args:
            locate: returns the location; called with True after the last location was refused. Its errors are not
                retried, since stores retry by themselves.

        Raises:
            ChangedError: the file has changed since the listing.
            SourceError: the file cannot be fetched; the message names the file.
        """
        offset, failures, denied = start, 0, False
        while True:
            location = locate(denied)
            try:
                for chunk in self._stream(location, item, offset, end):
                    write(chunk, offset)
                    offset += len(chunk)
                    failures, denied = 0, False
                if offset == end:
                    return
                raise UnreachableError("the connection was closed early")
            except DeniedError:
                # The URL may have expired. If a new URL is refused as well, access is denied.
                if denied:
                    raise
                denied = True
            except UnreachableError as error:
                failures += 1
                if failures >= self._options.tries:
                    message = f"{item.key} could not be fetched in {failures} tries: {error.message}"
                    raise UnreachableError(message) from None
                self._pause(_backoff_s(failures))

    def close(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.clear()

    def _stream(self, location: Location, item: Item, start: int, end: int) -> Iterator[bytes]:
        """One attempt, in chunks of at most 1 MiB. Ends early if the connection does."""
        with self._request(location, item, start, end) as response:
            # A server without ranges sends the file from the beginning.
            skip, remaining = (start if response.status == 200 else 0), end - start
            try:
                # read1 returns what has arrived instead of filling a chunk: a failure then loses nothing.
                while remaining and (chunk := response.read1(min(_CHUNK, skip + remaining), decode_content=False)):
                    chunk, skip = chunk[skip:][:remaining], max(0, skip - len(chunk))
                    if chunk:
                        remaining -= len(chunk)
                        yield chunk
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise UnreachableError(_reason(error)) from None

    @contextmanager
    def _request(self, location: Location, item: Item, start: int, end: int) -> Iterator[urllib3.BaseHTTPResponse]:
        headers = {"accept-encoding": "identity", **location.headers, "range": f"bytes={start}-{end - 1}"}
        try:
            response = self._pool(location).request(
                "GET", location.url, headers=headers, preload_content=False, retries=_REDIRECTS, timeout=self._timeout
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(_reason(error)) from None
        try:
            _raise_for_status(response, item, start)
            yield response
            # A connection can only be reused once the response was read to its end.
            response.close() if response.length_remaining else response.release_conn()
        except BaseException:
            response.close()
            raise

    def _pool(self, location: Location) -> urllib3.PoolManager:
        """The connection pool for the location's host and certificates, through the environment's proxy for it."""
        parts = urlsplit(location.url)
        key = f"{parts.scheme}://{parts.netloc}", location.ca_bundle
        with self._lock:
            if key not in self._pools:
                bypasses = urllib.request.proxy_bypass(parts.hostname or "")
                proxy = "" if bypasses else urllib.request.getproxies().get(parts.scheme, "")
                options: dict[str, Any] = {"maxsize": self._options.threads}
                # Loading certificates takes longer than a small download, so plain HTTP does without.
                if "https" in (parts.scheme, urlsplit(proxy).scheme):
                    options["ssl_context"] = _ssl_context(location.ca_bundle)
                pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
                self._pools[key] = pool
            return self._pools[key]


def _raise_for_status(response: urllib3.BaseHTTPResponse, item: Item, start: int) -> None:
    status = response.status
    if status in (200, 206):
        if _full_size(response, start) not in (None, item.size):
            raise ChangedError(f"{item.key} was replaced while it was fetched: its size is not the listed one.")
        return
    if status in _CHANGED:
        raise ChangedError(f"{item.key} was removed or replaced while it was fetched.")
    if status in (400, 401, 403):  # S3 answers 400 if a token has expired
        raise DeniedError(f"{item.key} may not be read with these credentials (HTTP {status}).")
    if status in _TRANSIENT:
        raise UnreachableError(f"the server answered {status}")
    raise SourceError(f"{item.key} could not be fetched: the server answered {status}.")


def _full_size(response: urllib3.BaseHTTPResponse, start: int) -> int | None:
    """Size of the whole file by the headers; raises UnreachableError if the response holds another range."""
    if response.status == 200:
        length = response.headers.get("content-length")
        return int(length) if length else None
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
    if not match or int(match[1]) != start:
        raise UnreachableError("the server answered with another range")
    return None if match[2] == "*" else int(match[2])


def _backoff_s(failures: int) -> float:
    """Backoff with full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/"""
    return random.uniform(0.1, min(_MAX_WAIT_S, 0.5 * 2**failures))


def _reason(error: Exception) -> str:
    """Describe a network error without its URL, which may hold a signature."""
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason:
        error = error.reason
    if isinstance(error, urllib3.exceptions.ReadTimeoutError | TimeoutError):
        return "the server sent nothing for too long"
    if isinstance(error, urllib3.exceptions.SSLError | ssl.SSLError):
        return f"TLS failed: {type(error).__name__}"
    return f"the connection broke ({type(error).__name__})"


@cache
def _ssl_context(ca_bundle: str | None) -> ssl.SSLContext:
    """Trust the system's certificates, Mozilla's, and `ca_bundle` or else the bundle that the environment names."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    names = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    if bundle := ca_bundle or next(filter(None, map(os.environ.get, names)), None):
        context.load_verify_locations(bundle)
    return context
