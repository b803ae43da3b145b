"""Runs functions on clients' content in processes with limits on CPU time and memory.

Run as a program, this module is such a process. Its arguments are the names of a module and a function, and the
function's further arguments; the content comes from stdin. The pickled result, or RequestError, goes to stdout.
"""

import asyncio
import gc
import importlib
import pickle
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from rayllm.core.errors import RequestError, UnavailableError

T = TypeVar("T")

_CPU_S = 20
_MEMORY_BYTES = 2 << 30


async def call(what: str, read: Callable[..., T], content: bytes, *arguments: str, timeout_s: float) -> T:
    """Run a module's function `read` on `content` in a limited process, and return the result.

    Errors name the content by `what`. Raises RequestError as `read` does, or if reading takes too much time or memory,
    and UnavailableError if no process starts.
    """
    command = (sys.executable, "-m", __name__, read.__module__, read.__name__, *arguments)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    except OSError as error:
        raise UnavailableError(f"{what} cannot be read now: {error.strerror}.", None, None, 5) from None
    answer = b""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                answer, _ = await process.communicate(content)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    # No output: the process was ended for its use of time or memory.
    result = pickle.loads(answer) if answer else RequestError(f"{what} takes too long, or too much memory, to read.")
    if isinstance(result, RequestError):
        raise result
    return cast("T", result)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Little is freed before the end, and garbage collection would take most of the time.
    gc.disable()
    module, function, *arguments = sys.argv[1:]
    try:
        answer = getattr(importlib.import_module(module), function)(sys.stdin.buffer.read(), *arguments)
    except RequestError as error:
        answer = error
    except MemoryError:
        return
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
