"""Requests that two servers could read differently are refused, and no byte behind them is taken for a request."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress

import pytest

from tests.unit.serving.router.http.test_client_limits import POST, Server, read, server

CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
# What an attacker hides behind a request.
HIDDEN = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"

AMBIGUOUS = {
    "CL.TE": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE.CL": POST + b"transfer-encoding: chunked\r\ncontent-length: 40\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 2\r\ncontent-length: 40\r\n\r\n{}",
    "two equal lengths": POST + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "a list of lengths": POST + b"content-length: 2, 2\r\n\r\n{}",
    "a length with a sign": POST + b"content-length: +2\r\n\r\n{}",
    "a negative length": POST + b"content-length: -2\r\n\r\n{}",
    "a hexadecimal length": POST + b"content-length: 0x2\r\n\r\n{}",
    "a length beyond 64 bits": POST + b"content-length: 99999999999999999999999\r\n\r\n{}",
    "another encoding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked is not last": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two encodings": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "a vertical tab": POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"content-length : 2\r\n\r\n{}",
    "a folded header": POST + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}",
    "a folded encoding": POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "lines that end in LF": b"POST /v1/x HTTP/1.1\nhost: x\ncontent-length: 2\n\n{}",
    "a header that ends in LF": POST + b"x-a: b\ncontent-length: 2\r\n\r\n{}",
    "a header that ends in CR": POST + b"x-a: b\rcontent-length: 2\r\n\r\n{}",
    "NUL in a header": POST + b"x-a: b\x00c\r\ncontent-length: 2\r\n\r\n{}",
    "a size of a chunk that is no number": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "a size of a chunk with 0x": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a size of a chunk beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunks that end in LF": CHUNKED + b"2\n{}\n0\n\n",
    "an extension of a chunk that ends in LF": CHUNKED + b"2;\n{}\r\n0\r\n\r\n",
    "a length in the trailer": CHUNKED + b"2\r\n{}\r\n0\r\ncontent-length: 50\r\n\r\n",
    "no host": b"GET /v1/x HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/x HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "a tunnel": b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/1.2": b"GET /v1/x HTTP/1.2\r\nhost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a proxy's own line": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
}


async def all_that_comes(found: Server, sent: bytes) -> bytes:
    """Everything until the server closes the connection."""
    reader, writer = await found.connect(sent)
    received = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return received


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_it_is_400_and_the_connection_ends(sent: bytes) -> None:
    async with server() as found:
        received = await all_that_comes(found, sent + HIDDEN)
        assert re.findall(rb"HTTP/1.1 (\d+)", received.replace(b"an HTTP/1.1 request", b"")) == [b"400"]
        head, body = received.split(b"\r\n\r\n", 1)
        assert b"connection: close" in head
        assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
        # Others are served.
        assert await found.answer(POST + b"content-length: 2\r\n\r\n{}") == (200, {"size": 2})


async def test_it_is_one_request_however_it_is_cut() -> None:
    async with server() as found:
        for sent in (AMBIGUOUS["CL.TE"], AMBIGUOUS["TE.CL"], AMBIGUOUS["chunks that end in LF"]):
            reader, writer = await found.connect()
            for byte in sent:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            writer.write(HIDDEN)
            received = b""
            # The server resets a connection that goes on sending after its end.
            with suppress(ConnectionError):
                while piece := await asyncio.wait_for(reader.read(100), 60):
                    received += piece
            assert b" 200 " not in received
            writer.close()


async def test_an_old_client_gets_one_reply_on_each_connection() -> None:
    async with server() as found:
        for head in (b"\r\n", b"connection: keep-alive\r\n\r\n"):
            received = await all_that_comes(found, b"GET /health HTTP/1.0\r\n" + head + HIDDEN)
            assert received.count(b"HTTP/1.1 200 OK") == 1
        posted = b"POST /v1/x HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}"
        assert (await all_that_comes(found, posted)).endswith(b'{"size":2}')


async def test_many_requests_at_once_are_answered_in_order() -> None:
    async with server() as found:
        sizes = range(1, 500)
        sent = b"".join(POST + b"content-length: %d\r\n\r\n" % size + b"x" * size for size in sizes)
        reader, writer = await found.connect(sent)
        for size in sizes:
            assert await read(reader) == (200, {"size": size})
        writer.close()


async def test_a_thousand_silent_connections_keep_nobody_out() -> None:
    async with server(header_timeout_s=60) as found:
        silent = [await found.connect() for _ in range(500)]
        silent += [await found.connect(b"POST /v1/x HT") for _ in range(500)]
        assert await found.answer(POST + b"content-length: 2\r\n\r\n{}") == (200, {"size": 2})
        for _, writer in silent:
            writer.close()
