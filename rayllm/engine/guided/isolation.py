"""Isolation of backends' wheels: each backend imports from its own wheels only.

Python has one table of modules a process. The modules of a backend's wheels are in it only while the backend's code
runs: its load, each call of its logits processor, and each step of its coroutines from one `await` to the next. The
process's modules of the same names are set aside for that time.

Limits, for backends that have wheels:

- Other threads that import one of these names at the same time get the backend's copy.
- Threads, tasks and callbacks that a backend starts see the process's modules.
- vLLM's code that a backend calls or awaits sees the backend's modules.
- A top-level name belongs to the wheels as a whole: a wheel with `google/thing` hides the process's `google`.
- Compiled modules without multi-phase initialization (PEP 489) exist once per process.
- Isolation separates versions; it is not a sandbox: the process's other modules can be imported.
"""

import sys
import threading
from collections.abc import Awaitable, Generator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Result = TypeVar("Result")

_one_at_a_time = threading.RLock()
_MODULES = (".py", ".so", ".pyc")


class Isolation:
    """A context manager in which the modules of unpacked wheels in `folder`, if any, can be imported.

    Reentrant, and exclusive between threads.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = str(folder)
        self._names = _top_level_names(folder) if folder else frozenset[str]()
        self._own: dict[str, ModuleType] = {}
        self._aside: dict[str, ModuleType] = {}
        # Last known sizes of `sys.modules` inside and outside. While a size is unchanged, nothing was imported, and the
        # thousands of entries are not searched for every token.
        self._inside = self._outside = -1
        self._depth = 0

    def __enter__(self) -> None:
        if not self._names:
            return
        _one_at_a_time.acquire()
        self._depth += 1
        if self._depth == 1:
            self._aside = self._take_out(self._aside, self._outside)
            sys.modules.update(self._own)
            sys.path.insert(0, self._folder)
            self._inside = len(sys.modules)

    def __exit__(self, *_: object) -> None:
        if not self._names:
            return
        self._depth -= 1
        if self._depth == 0:
            with suppress(ValueError):  # the backend's code may have removed it
                sys.path.remove(self._folder)
            self._own = self._take_out(self._own, self._inside)
            sys.modules.update(self._aside)
            self._outside = len(sys.modules)
        _one_at_a_time.release()

    def _take_out(self, known: dict[str, ModuleType], size: int) -> dict[str, ModuleType]:
        """Remove the wheels' modules from `sys.modules`: the `known` ones, if `sys.modules` has `size` entries."""
        if len(sys.modules) == size and all(sys.modules.get(name) is module for name, module in known.items()):
            names = list(known)
        else:
            names = [name for name in list(sys.modules) if name.partition(".")[0] in self._names]
        return {name: sys.modules.pop(name) for name in names}


class Stepwise(Awaitable[Result]):
    """An awaitable that runs the steps of another inside `isolation`, and waits outside."""

    def __init__(self, awaitable: Awaitable[Result], isolation: Isolation) -> None:
        self._awaitable = awaitable
        self._isolation = isolation

    def __await__(self) -> Generator[Any, Any, Result]:
        steps: Any = self._awaitable.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                with self._isolation:
                    waited_for = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except SystemExit as end:
                # asyncio would end the whole process.
                raise RuntimeError(f"a guided decoding backend called exit({end.code!r})") from end
            try:
                sent, thrown = (yield waited_for), None
            except BaseException as error:
                sent, thrown = None, error


def _top_level_names(folder: Path) -> frozenset[str]:
    names = (entry.name.partition(".")[0] for entry in folder.iterdir() if entry.is_dir() or entry.suffix in _MODULES)
    return frozenset(name for name in names if name.isidentifier())
