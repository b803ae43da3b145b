"""JSON bodies read without holding the event loop: light ones at once, heavy ones in a process of their own.

A thread would not do: the parser holds the interpreter's lock from a body's beginning to its end.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from contextlib import suppress

from rayllm.errors import RequestError, UnavailableError
from rayllm.serving.router.requests.body import is_light
from rayllm.serving.router.requests.body_summary import Summary, summarize

# A flood of heavy bodies leaves the other cores alone.
_AT_ONCE = 2
_QUEUE_S = 20.0
# A process under load takes seconds to start.
_READING_S = 60.0
_SLICE = 256 * 1024


class BodyReader:
    """Reads the JSON bodies of one event loop."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def read(self, raw: bytes) -> Summary:
        """What the router needs of `raw`.

        Raises:
            RequestError: it is no JSON object fit for an engine, or names no model.
            UnavailableError: too many heavy bodies are waiting.
        """
        if is_light(raw):
            return summarize(raw)
        try:
            async with asyncio.timeout(_QUEUE_S):
                await self._room.acquire()
        except TimeoutError:
            raise UnavailableError("Too many large request bodies are waiting to be read.", None, None, 5) from None
        try:
            return await _read_apart(raw)
        finally:
            self._room.release()


async def _read_apart(raw: bytes) -> Summary:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rayllm.serving.router.requests.body_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise UnavailableError(f"A large request body cannot be read now: {error.strerror}.", None, None, 5) from None
    try:
        async with asyncio.timeout(_READING_S):
            answer = await _answer(process, raw)
    except TimeoutError:
        answer = b""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    # Where the kernel ended it, for time or memory, there is no answer.
    found = pickle.loads(answer) if answer else RequestError("The request body takes too long to read.")
    if isinstance(found, Summary):
        return found
    raise found


async def _answer(process: asyncio.subprocess.Process, raw: bytes) -> bytes:
    assert process.stdin is not None  # noqa: S101  (a pipe)
    assert process.stdout is not None  # noqa: S101  (a pipe)
    content = memoryview(raw)
    # The process may end before it has taken all.
    with suppress(ConnectionError):
        # In slices, since the transport copies what it cannot write at once.
        for start in range(0, len(raw), _SLICE):
            process.stdin.write(content[start : start + _SLICE])
            await process.stdin.drain()
    process.stdin.close()
    return await process.stdout.read()
