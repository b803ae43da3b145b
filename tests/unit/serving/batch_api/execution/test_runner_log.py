"""The log file of a runner, and its maximum size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rayllm.serving.batch_api.execution.runner_log import MAX_BYTES, MAX_LOGS, RunnerLog

# Its output is taken for good, so it is a process of its own.
_RUNNER = """
import os, sys
from pathlib import Path
from rayllm.serving.batch_api.execution.runner_log import RunnerLog
log = RunnerLog(Path(sys.argv[1]), "batch_1")
log.redirect_output()
log.announce("batch_1:\\n begins")
print("progress", flush=True)
print("progress", file=sys.stderr)
os.write(2, b"of a library\\n")
log.announce("batch_1: completed")
"""


def test_the_console_gets_what_is_announced_and_the_file_the_rest(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RUNNER, str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "batch_1: begins\nbatch_1: completed\n")
    assert (tmp_path / "logs" / "batch_1.log").read_text() == "progress\nprogress\nof a library\n"


def test_a_log_keeps_its_end(tmp_path: Path) -> None:
    log = RunnerLog(tmp_path, "batch_1")
    with log.path.open("a") as written:
        written.write("x" * MAX_BYTES + "the last line\n")
    log.shorten()
    assert log.path.stat().st_size == MAX_BYTES // 2
    assert log.path.read_text().endswith("xthe last line\n")
    with log.path.open("a") as written:
        written.write("more\n")
    log.shorten()
    assert log.path.read_text().endswith("xthe last line\nmore\n")


def test_logs_of_the_latest_batches_stay(tmp_path: Path) -> None:
    for number in range(MAX_LOGS + 5):
        RunnerLog(tmp_path, f"batch_{number:04}")
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "batch_0005.log"
    assert len(list(tmp_path.iterdir())) == MAX_LOGS
