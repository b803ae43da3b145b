"""Private names of Ray and Ray Serve, and that they are used nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ray

import rayllm
from rayllm.cluster.ray_internals import PRIVATE_NAMES, hide_worker_count
from rayllm.private_names import missing_names

_PRIVATE_IMPORT = re.compile(r"(?:from|import) (ray\.(?:serve\.)?_private[\w.]*|ray\.experimental\.internal_kv)")


def test_ray_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []


def test_every_private_module_that_is_imported_is_listed() -> None:
    source = "\n".join(path.read_text() for path in Path(rayllm.__file__).parent.rglob("*.py"))
    imported = {module for module in _PRIVATE_IMPORT.findall(source) if module != "ray._private"}
    assert imported <= PRIVATE_NAMES.keys()


def test_the_number_of_workers_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray._private.worker, "print_to_stdstream", ray._private.worker.print_to_stdstream)
    hide_worker_count()
    for line in (
        "WARNING: 8 PYTHON worker processes have been started on node: 1f with address: 192.0.2.2, which is 4x the …",
        "2 Workers (tasks / actors) killed due to memory pressure (OOM).",
    ):
        data = {"lines": [line], "pid": "raylet", "is_err": False}
        ray._private.worker.print_to_stdstream(data, ignore_prefix=False)
    [printed] = capsys.readouterr().out.splitlines()
    assert "memory pressure" in printed
