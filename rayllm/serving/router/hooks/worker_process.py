"""The program of the hooks' process: reads calls from stdin, and writes results to stdout.

The first message has the names of the functions, and its answer the fault of each, or null. Then each call gets one
result. Functions run concurrently: coroutine functions in the event loop, others in threads.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import logging
import os
import resource
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from rayllm.hooks import HookRequest, HookUsage, Refuse

MAX_CALLS = 256
"""Calls at once."""
LENGTHS = struct.Struct("!II")
"""Header of a message: the lengths of its JSON object and of the bytes after that."""
# Threads that still run after their time limit, and cannot be stopped: with this many, the process ends.
_MAX_STUCK = 64
logger = logging.getLogger("rayllm.hooks")


def import_function(name: str) -> Callable[..., Any]:
    """The function behind `package.module:name` or `file.py:name`. Raises ImportError if there is none."""
    place, _, attributes = name.rpartition(":")
    found: Any = _module(place)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise ImportError(f"{place} has no `{attributes}`") from None
    if not callable(found):
        raise ImportError(f"`{attributes}` of {place} cannot be called")
    function: Callable[..., Any] = found
    return function


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    # Two hooks in one file share its module.
    if place in sys.modules:
        return sys.modules[place]
    if not Path(place).is_file():
        raise ImportError(f"there is no file {place}")
    # The file may import modules beside it.
    sys.path.insert(0, str(Path(place).parent))
    spec = importlib.util.spec_from_file_location(place, place)
    assert spec is not None  # noqa: S101  (a .py file has one)
    assert spec.loader is not None  # noqa: S101  (a .py file has one)
    module = sys.modules[place] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_fault(error: BaseException) -> str:
    """Why a function cannot be imported, with the line of the user's module if that failed."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = where.filename == __file__ or where.filename.startswith("<frozen")
    line = "" if is_ours else f" ({where.filename}, line {where.lineno})"
    said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    return f"cannot be imported: {said[:1000]}{line}"


def message(head: dict[str, Any], body: bytes = b"") -> bytes:
    """A message: a JSON object, and bytes that stay as they are."""
    encoded = json.dumps(head).encode()
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body


class Worker:
    """Calls hooks, in the order of the configuration. A changed body may have `max_bytes` bytes."""

    def __init__(self, functions: list[Callable[..., Any]], max_bytes: int, answer: Callable[[bytes], None]) -> None:
        self._functions = functions
        self._max_bytes = max_bytes
        self._answer = answer
        self._threads = ThreadPoolExecutor(MAX_CALLS + _MAX_STUCK, "hook")
        self._stuck: set[Future[Any]] = set()

    async def run(self, call: dict[str, Any], body: bytes) -> None:
        changed = b""
        try:
            async with asyncio.timeout(call["timeout_s"]) as deadline:
                returned = await self._returned(self._functions[call["hook"]], _argument(call, body))
            changed = self._body(call, returned)
            result: dict[str, Any] = {"result": "change" if changed else "allow"}
        except Refuse as refusal:
            shown = {"message": refusal.message, "status": refusal.status, "code": refusal.code}
            result = {"result": "refuse", **shown}
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:500]
            if isinstance(error, TimeoutError) and deadline.expired():
                said = f"it took more than {call['timeout_s']:g} s (timeout_s)"
            else:
                logger.error("A hook failed on the request %s", call["request"]["id"], exc_info=error)
            result = {"result": "fault", "message": said}
        self._answer(message({"id": call["id"], **result}, changed))

    async def _returned(self, function: Callable[..., Any], argument: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        thread = self._threads.submit(function, argument)
        try:
            returned = await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            self._stuck.add(thread)
            thread.add_done_callback(self._stuck.discard)
            if len(self._stuck) >= _MAX_STUCK:
                logger.error("%d threads of hooks hang: the process ends", _MAX_STUCK)
                os._exit(1)
            raise
        # Not recognized above: an object whose `__call__` is a coroutine function.
        return await returned if inspect.isawaitable(returned) else returned

    def _body(self, call: dict[str, Any], returned: Any) -> bytes:
        """The changed body, empty for none. Raises TypeError or ValueError if the function returned anything else."""
        if returned is None or call["when"] == "usage":
            return b""
        if not isinstance(returned, dict):
            raise TypeError(f"a hook must return None or the changed body as a dict, not {type(returned).__name__}")
        if not call["has_body"]:
            raise TypeError("a hook cannot change a multipart form; return None")
        changed = json.dumps(returned, allow_nan=False).encode()
        if len(changed) > self._max_bytes:
            raise ValueError(f"the returned body has more than {self._max_bytes} bytes (router.max_body_bytes)")
        return changed


def _argument(call: dict[str, Any], body: bytes) -> HookRequest | HookUsage:
    if call["when"] == "usage":
        return HookUsage(**call["request"])
    return HookRequest(**call["request"], body=json.loads(body) if call["has_body"] else None)


def main() -> None:
    """Import the functions, then call them until stdin ends."""
    # What hooks print must not mix with the answers, which get a descriptor of their own.
    output = os.dup(1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    first, _ = _read(sys.stdin.buffer) or sys.exit(0)
    sys.path[:] = first["path"]
    functions: list[Callable[..., Any]] = []
    faults: list[str | None] = []
    for name in first["callables"]:
        try:
            functions.append(import_function(name))
            faults.append(None)
        except (Exception, SystemExit) as error:
            faults.append(import_fault(error))
    _write(output, message({"faults": faults}))
    if not any(faults):
        asyncio.run(_serve(functions, first["max_bytes"], output))


async def _serve(functions: list[Callable[..., Any]], max_bytes: int, output: int) -> None:
    worker = Worker(functions, max_bytes, lambda answer: _write(output, answer))
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    def start(call: dict[str, Any], body: bytes) -> None:
        running.add(task := loop.create_task(worker.run(call, body)))
        task.add_done_callback(running.discard)

    def receive() -> None:
        while received := _read(sys.stdin.buffer):
            loop.call_soon_threadsafe(start, *received)
        # The router is gone, whatever the hooks are doing.
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    await loop.create_future()


def _read(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head, body = LENGTHS.unpack(lengths)
    content = stream.read(head + body)
    return (json.loads(content[:head]), content[head:]) if len(content) == head + body else None


def _write(output: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(output, view) :]


if __name__ == "__main__":
    main()
