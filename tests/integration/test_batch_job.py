"""Jobs that are killed, and files of requests from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.processes import of_same_clusters, titled
from tests.integration import paced_job
from tests.integration.service import DEMO, ROOT

CHAT = "/v1/chat/completions"
ENGINE = "VLLM::EngineCore"
CAPITALS = {"France": "Paris", "Germany": "Berlin", "Japan": "Tokyo"}


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """What a failed test has started takes nothing from the next ones."""
    yield
    while _started:
        with _started.pop() as process:
            if process.poll() is None:
                kill(process)


def start(*command: str) -> subprocess.Popen[str]:
    """Start one of our programs as a shell does in the background: deaf to Ctrl-C, unless it asks for it."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    _started.append(process)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """`kill -9` of a program and all that it has started."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    family += of_same_clusters(family)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.communicate()


def kill_when(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """`kill` a program once the condition holds."""
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    kill(process)


def noted(folder: Path) -> int:
    return sum(1 for path in folder.glob("*.parquet") if ".pending" not in path.name)


def rows_of(path: Path) -> int:
    """Rows of a file; 0 where a kill left it half written."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except pa.ArrowInvalid:
        return 0


def test_a_killed_job_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    job = ("tests.integration.paced_job", str(tmp_path))
    kill_when(start(*job), lambda: noted(tmp_path / "notes") >= 3)
    written = {path: rows_of(path) for path in (tmp_path / "output").glob("*.parquet")}
    before = {path.name: path.stat().st_mtime_ns for path, rows in written.items() if rows}
    assert 0 < sum(written.values()) <= paced_job.ROWS // 2

    (tmp_path / "go").touch()
    again = start(*job)
    assert again.wait(timeout=300) == 0, again.communicate()
    files = list((tmp_path / "output").glob("*.parquet"))
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert Counter(row["id"] for row in rows) == Counter(range(paced_job.ROWS))
    assert all(row["double"] == 2 * row["id"] for row in rows)
    # What was noted as written was neither touched nor done again.
    kept = {path.name: path.stat().st_mtime_ns for path in files if path.name in before}
    assert len(kept) >= 3
    assert kept.items() <= before.items()
    assert noted(tmp_path / "notes") == 0


def requests(count: int) -> list[dict[str, Any]]:
    made = []
    for index in range(count):
        country = list(CAPITALS)[index % 3]
        body: dict[str, Any] = {
            "model": "rayllm-demo",
            "messages": [{"role": "user", "content": f"What is the capital of {country}?"}],
            "temperature": 99 if index == 7 else 0,
            "max_tokens": 40,
        }
        made.append({"custom_id": f"r{index}", "method": "POST", "url": CHAT, "body": body})
    made[-1] = {
        "custom_id": f"r{count - 1}",
        "url": "/v1/completions",
        "body": {"model": "rayllm-demo", "prompt": "The capital of France"},
    }
    return made


def write(path: Path, entries: list[Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_requests_killed_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    count, before = 1500, set(titled(ENGINE))
    given, output = write(tmp_path / "in.jsonl", requests(count)), tmp_path / "out.jsonl"
    run = ("rayllm", "batch", "run", str(given), "-o", str(output), "--model", str(DEMO), "--json")
    work = tmp_path / "out.jsonl.work"
    first = start(*run)
    kill_when(first, lambda: noted(work / "written") >= 3)
    status = json.loads(start("rayllm", "batch", "status", str(output), "--json").communicate()[0])
    assert status["status"] == "broken_off"
    assert 0 < status["request_counts"]["completed"] < count
    assert not output.exists()

    again = start(*run)
    stdout, stderr = again.communicate(timeout=500)
    # Some failed, which is no success.
    assert again.returncode == 1, stderr
    assert json.loads(stdout) == {
        "total": count,
        "completed": count - 1,
        "failed": 1,
        "output": str(output),
        "errors": str(tmp_path / "out.errors.jsonl"),
    }
    answers = read(output)
    assert [answer["custom_id"] for answer in answers] == [f"r{i}" for i in range(count) if i != 7]
    for answer in answers[:-1]:
        country = list(CAPITALS)[int(answer["custom_id"][1:]) % 3]
        content = answer["response"]["body"]["choices"][0]["message"]["content"]
        assert content == f"The capital of {country} is {CAPITALS[country]}."
    assert answers[-1]["response"]["body"]["object"] == "text_completion"
    (failure,) = read(tmp_path / "out.errors.jsonl")
    assert failure["custom_id"] == "r7"
    assert failure["response"]["status_code"] == 400
    assert failure["response"]["body"]["error"]["param"] == "temperature"
    assert not work.exists()
    _, left = psutil.wait_procs(set(titled(ENGINE)) - before, timeout=30)
    assert not left


def fails(*arguments: str) -> str:
    process = start("rayllm", "batch", *arguments)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    return stderr


def test_faulty_files_are_refused_before_anything_runs(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    faulty = tmp_path / "faulty.jsonl"
    faulty.write_text('{"custom_id": "a"}\n{\n' + json.dumps(requests(1)[0]) + "\n")
    message = fails("run", str(faulty), "-o", str(output), "--model", str(DEMO))
    assert "line 1: `url` is missing" in message
    assert "line 2: The request is not valid JSON" in message
    assert "nothing was run" in message
    assert list(tmp_path.iterdir()) == [faulty]
    assert "cannot be read" in fails("run", str(tmp_path / "none.jsonl"), "-o", str(output), "--model", str(DEMO))
    given = write(tmp_path / "in.jsonl", requests(2))
    assert "none.yaml" in fails("run", str(given), "-o", str(output), "--model", str(tmp_path / "none.yaml"))
    output.write_text("mine")
    assert "--force" in fails("run", str(given), "-o", str(output), "--model", str(DEMO))
    assert output.read_text() == "mine"


def test_the_status_of_what_is_not_there(tmp_path: Path) -> None:
    assert "no job writes it" in fails("status", str(tmp_path / "none.jsonl"))
    assert "cannot connect" in fails("status", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_says_no_more_than_it_has_to(tmp_path: Path, sign: signal.Signals) -> None:
    given = write(tmp_path / "in.jsonl", requests(2))
    process = start("rayllm", "batch", "run", str(given), "-o", str(tmp_path / "out.jsonl"), "--model", str(DEMO))
    end = time.monotonic() + 60
    while not (tmp_path / "out.jsonl.work" / "job.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)
    family = psutil.Process(process.pid).children(recursive=True)
    family += of_same_clusters(family)
    os.kill(process.pid, sign)
    _, stderr = process.communicate(timeout=60)
    # Ray's processes end a little later. Until then, what starts next may connect to them, and wait forever.
    psutil.wait_procs(family, timeout=60)
    # While it starts, Ray itself takes SIGTERM, and ends with the number of the signal. Python itself ends by SIGINT
    # where that came while code in a string was executed, as a dataclass does.
    expected = {130, -signal.SIGINT} | ({signal.SIGTERM} if sign == signal.SIGTERM else set())
    assert process.returncode in expected
    assert "Traceback" not in stderr
