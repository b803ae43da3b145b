"""Private names of Ray and Ray Serve, and that they are used nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ray

import rayllm
from rayllm.cluster.ray_internals import PRIVATE_NAMES, hide_worker_count
from tests.private_names import missing_names

_PRIVATE_IMPORT = re.compile(r"(?:from|import) (ray\.(?:serve\.)?_private[\w.]*|ray\.experimental\.internal_kv)")


def test_ray_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []


def test_every_private_module_that_is_imported_is_listed() -> None:
    source = "\n".join(path.read_text() for path in Path(rayllm.__file__).parent.rglob("*.py"))
    imported = {module for module in _PRIVATE_IMPORT.findall(source) if module != "ray._private"}
    assert imported <= PRIVATE_NAMES.keys()


def test_the_number_of_workers_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    worker = ray._private.worker
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: printed.extend(data["lines"]))
    hide_worker_count.__wrapped__()
    text = "worker processes have been started on node: "
    raylet = Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet"
    assert text.encode() in raylet.read_bytes()
    hidden = (
        f"WARNING: 8 PYTHON {text}1f with address: 192.0.2.2, which is 4x the maximum expected startup concurrency."
    )
    shown = "2 Workers (tasks / actors) killed due to memory pressure (OOM)."
    for line in (hidden, shown):
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert printed == [shown]
