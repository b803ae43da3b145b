"""Reading of clients' content in processes whose time and memory are limited."""

import asyncio
import resource
import sys
from contextlib import suppress

from rayllm.core.errors import UnavailableError

_SLICE = 256 * 1024


def limit_process(cpu_s: int, memory_bytes: int) -> None:
    """Limit the time and memory of this process, which the kernel ends beyond the limits."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


async def answer_of(module: str, content: bytes, *arguments: str, timeout_s: float) -> bytes:
    """What a module writes if it runs in a process of its own, with `content` as its input.

    The answer is empty if the process was ended for its use of time or memory.

    Raises:
        UnavailableError: no process can be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise UnavailableError(f"A large request cannot be read now: {error.strerror}.", None, None, 5) from None
    try:
        async with asyncio.timeout(timeout_s):
            return await _answer(process, content)
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _answer(process: asyncio.subprocess.Process, content: bytes) -> bytes:
    assert process.stdin is not None  # noqa: S101  (a pipe)
    assert process.stdout is not None  # noqa: S101  (a pipe)
    view = memoryview(content)
    # The process may exit before it has read everything.
    with suppress(ConnectionError):
        # In slices: the transport copies what it cannot write at once.
        for start in range(0, len(view), _SLICE):
            process.stdin.write(view[start : start + _SLICE])
            await process.stdin.drain()
    process.stdin.close()
    return await process.stdout.read()
