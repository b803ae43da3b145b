"""Private names of Ray and Ray Serve, and that they are used nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import rayllm
from rayllm.cluster.ray_internals import PRIVATE_NAMES
from rayllm.private_names import missing_names

_PRIVATE_IMPORT = re.compile(r"(?:from|import) (ray\.(?:serve\.)?_private[\w.]*|ray\.experimental\.internal_kv)")


def test_ray_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []


def test_every_private_module_that_is_imported_is_listed() -> None:
    source = "\n".join(path.read_text() for path in Path(rayllm.__file__).parent.rglob("*.py"))
    imported = {module for module in _PRIVATE_IMPORT.findall(source) if module != "ray._private"}
    assert imported <= PRIVATE_NAMES.keys()
