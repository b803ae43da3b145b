"""Imports the functions that `router.hooks` names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def import_function(name: str) -> Callable[..., Any]:
    """The function behind `package.module:name` or `file.py:name`.

    Raises:
        ImportError: there is no such module or function; the message says which.
    """
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
    # So that it may import its neighbors.
    sys.path.insert(0, str(Path(place).parent))
    spec = importlib.util.spec_from_file_location(place, place)
    assert spec is not None  # noqa: S101  (a .py file has one)
    assert spec.loader is not None  # noqa: S101  (a .py file has one)
    module = sys.modules[place] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_fault(error: BaseException) -> str:
    """Why a function cannot be imported, in a phrase that names the line of the user's module if it failed there."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = where.filename == __file__ or where.filename.startswith("<frozen")
    line = "" if is_ours else f" ({where.filename}, line {where.lineno})"
    said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    return f"cannot be imported: {said[:1000]}{line}"
