"""Has the clusters that commands start fork their workers, and commands find no clusters but those of their tests.

Python imports it where PYTHONPATH has its folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

FOLDER = "_RAYLLM_FORKED_WORKERS"


def fork_workers(ray_constants: ModuleType) -> None:
    """Have Ray start its workers by the launcher."""
    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).parents[1] / "launcher.py")


def find_own_clusters(services: ModuleType) -> None:
    """Have Ray find only clusters that were started by these tests, and not by others that run beside them."""
    services._find_address_from_flag = _own_addresses


def _own_addresses(flag: str) -> set[str]:
    """The values of a raylet's flag, as `_find_address_from_flag` finds them."""
    own = f"{FOLDER}={os.environ[FOLDER]}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if not command[0].endswith(b"/raylet") or own not in (process / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:
            continue
        found |= {word.partition("=")[2] for word in b" ".join(command).decode().split() if word.startswith(f"{flag}=")}
    return found


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "ray._private.ray_constants": fork_workers,
    "ray._private.services": find_own_clusters,
}


class _Finder(PathFinder):
    """Changes Ray's modules when they are imported."""

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in _CHANGES:
            return None
        spec = PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        if spec and spec.loader:
            usual = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                usual(module)
                _CHANGES[fullname](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FOLDER in os.environ:
    sys.meta_path.insert(0, _Finder)
