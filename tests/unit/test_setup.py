"""Which build of PyTorch scripts/setup.sh asks for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
# Stands for uv: prints its arguments, and the constraints that are not locked.
UV = """#!/bin/sh
while [ $# -gt 0 ]; do
    echo "$1"
    case "$1 $2" in "--constraint "/*) cat "$2" ;; esac
    shift
done
"""


@pytest.mark.parametrize(
    ("engine", "offered", "backend", "constraint"),
    [
        ("cpu", [], True, False),
        ("cpu", [WHEEL], False, False),
        ("cuda", [], False, False),
        # As a version it is newer than the one without `+cpu`.
        ("cuda", [WHEEL], False, True),
    ],
)
def test_which_torch(tmp_path: Path, engine: str, offered: list[str], backend: bool, constraint: bool) -> None:
    programs, links = tmp_path / "venv" / "bin", tmp_path / "links"
    programs.mkdir(parents=True)
    links.mkdir()
    for name in offered:
        (links / name).touch()
    for name, script in (("python", "#!/bin/sh\n"), ("uv", UV)):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    variables = os.environ | {"VENV": str(programs.parent), "ENGINE": engine, "PIP_FIND_LINKS": str(links)}
    done = subprocess.run(
        [str(ROOT / "scripts" / "setup.sh")], env=variables, capture_output=True, text=True, check=True
    )
    words = done.stdout.split()
    assert ("--torch-backend" in words) == backend
    assert ("torch!=2.13.0+cpu" in words) == constraint
