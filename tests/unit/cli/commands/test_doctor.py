"""`rayllm doctor` on this machine: its lines, its exit status, and what --fix makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rayllm.cli.shared.machine import read_folder


def doctor(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rayllm", "doctor", *options]
    environment = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_a_fault_is_a_line_with_its_remedy(tmp_path: Path) -> None:
    done = doctor(RAYLLM_NO_SUCH="1", RAYLLM_CACHE_DIR=str(tmp_path))
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FAIL  variables ")]
    assert "RAYLLM_NO_SUCH: unknown environment variable" in line
    assert line.endswith("→ correct or unset it")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_fix_makes_folders_and_nothing_else(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    variables = {
        "RAYLLM_CACHE_DIR": str(cache), "HF_HOME": str(tmp_path / "hub"), "RAY_TMPDIR": str(tmp_path)
    }  # fmt: skip
    name = "folder of weights and adapters"

    def status(*options: str) -> tuple[str, str]:
        done = doctor("--json", *options, **variables)
        report = json.loads(done.stdout)
        assert report["ok"] == (done.returncode == 0)
        [check] = [check for check in report["checks"] if check["check"] == name]
        return check["status"], check["remedy"]

    assert status() == ("warning", "`rayllm doctor --fix` makes it")
    assert list(tmp_path.iterdir()) == []
    assert "does not exist" not in str(status("--fix"))
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert made == {"new", "new/cache", "hub", "hub/hub", "ray"}


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = read_folder("Ray", tmp_path / "file" / "cache")
    assert (folder.exists, folder.writable) == (False, False)
    folder = read_folder("Ray", tmp_path / "a" / "b")
    assert (folder.exists, folder.writable) == (False, True)
    assert 0 < folder.free <= folder.size


def test_a_fault_that_fix_may_not_mend_stays(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = doctor("--fix", RAYLLM_CACHE_DIR=str(tmp_path / "file" / "cache"), HF_HOME=str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path}/file/cache cannot be written to" in done.stdout
