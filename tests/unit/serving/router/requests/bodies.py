"""Request bodies of every shape that is hard to parse, and measurements of the event loop's delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


def _list(item: bytes) -> Callable[[int], bytes]:
    return lambda size: b'{"model":"x","m":[' + b",".join([item] * (size // (len(item) + 1))) + b"]}"


def _text(part: bytes) -> Callable[[int], bytes]:
    return lambda size: b'{"model":"x","m":"' + part * (size // len(part)) + b'"}'


def _broken(begin: bytes, part: bytes) -> Callable[[int], bytes]:
    return lambda size: b'{"model":"x","m":[' + begin + part * (size // len(part))


SHAPES: dict[str, Callable[[int], bytes]] = {
    "numbers": _list(b"1"),
    "floats": _list(b"1." + b"9" * 30 + b"e-300"),
    "brackets": _list(b"[]"),
    "objects": _list(b'{"a":1}'),
    "messages": _list(b'{"role":"user","content":"a"}'),
    "strings": _list(b'"a"'),
    "one long string": _text(b"a"),
    "escapes": _text(rb"\n"),
    "backslashes": _text(rb"\\"),
    "escaped quotes": _text(rb"\""),
    "emoji": _text(rb"\ud83d\ude00"),
    "half pairs, nearly": _text(rb"\ud7ff"),
    "fields": lambda size: b'{"model":"x",' + b",".join(b'"%d":1' % i for i in range(size // 12)) + b"}",
    "one long number": _list(b"9" * (1 << 17)),
    "white space": lambda size: b" " * size + b'{"model":"x"}',
    "open brackets": _broken(b"", b"["),
    "nested": _broken(b"", b'{"a":['),
    "a text without an end": _broken(b"[]," * 65 + b'"', rb"\""),
    "quotes": _broken(b"[]," * 65, b'""'),
    "quotes and backslashes": _broken(b"[]," * 65, rb'"\\"'),
}


def large_form(size: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """A multipart form with a file of `size` bytes that are nearly boundaries, and its headers."""
    part = b'--B\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    file = part % (b"file", b'; filename="a.wav"', b"\r\n--" * (size // 4))
    raw = part % (b"model", b"", b"x") + file + b"--B--\r\n"
    return raw, [(b"content-type", b"multipart/form-data; boundary=B")]


@asynccontextmanager
async def gaps() -> AsyncIterator[list[float]]:
    """The seconds of work between the turns that another task gets on the loop meanwhile.

    Counted as the processor's time of this thread, so that other processes of the machine do not matter.
    """
    seen: list[float] = []

    async def tick() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            seen.append(time.thread_time() - last)
            last = time.thread_time()

    ticking = asyncio.create_task(tick())
    try:
        yield seen
    finally:
        ticking.cancel()
