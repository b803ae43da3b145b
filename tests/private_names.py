"""Check that a library still has the private names that RayLLM uses.

`tests/vllm/private_names.py`, `cluster/ray_internals.py` and `serving/http/uvicorn_server.py` list them, one module a
library; a test of each says which names an upgrade has removed.
"""

from __future__ import annotations

import dis
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any


def missing_names(names: Mapping[str, Sequence[str]]) -> list[str]:
    """The names that the installed libraries lack, with their modules.

    Args:
        names: module → names in it, dotted for attributes of a class, including those that its methods set on `self`.
    """
    return [f"{module}.{name}" for module, listed in names.items() for name in listed if not _exists(module, name)]


def _exists(module: str, name: str) -> bool:
    try:
        value: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        if not hasattr(value, part):
            return inspect.isclass(value) and _sets(value, part)
        value = getattr(value, part)
    return True


def _sets(cls: type, attribute: str) -> bool:
    """Whether a method of the class, or of a base class, sets the attribute on an instance."""
    functions = (value for base in cls.__mro__ for value in vars(base).values() if inspect.isfunction(value))
    return any(
        instruction.opname == "STORE_ATTR" and instruction.argval == attribute
        for function in functions
        for instruction in dis.get_instructions(inspect.unwrap(function))
    )
