"""Has the clusters that commands start fork their workers. Python imports it where PYTHONPATH has its folder."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_MODULE = "ray._private.ray_constants"


class _Finder(PathFinder):
    """Sets the name of Ray's script when the module that has it is imported."""

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        if spec and spec.loader:
            usual = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                usual(module)
                module.SETUP_WORKER_FILENAME = str(Path(__file__).parents[1] / "launcher.py")

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "FORKED_WORKERS" in os.environ:
    sys.meta_path.insert(0, _Finder)
