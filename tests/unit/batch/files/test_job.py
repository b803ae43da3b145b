"""What a job makes of the answers that it finds in its folder; nothing is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayllm.batch.files.job import Job, executor
from rayllm.batch.files.jsonl import Fault
from rayllm.batch.rows import ERROR

PATH = "/v1/embeddings"


def part(folder: Path, name: str, *numbers: int) -> Path:
    """A part with the answers to some lines."""
    rows: list[dict[str, Any]] = [
        {"line": number, "status_code": 200, "response": json.dumps({"n": number}), ERROR: None} for number in numbers
    ]
    path = folder / "parts" / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Job:
    lines = [
        {"custom_id": str(n), "method": "POST", "url": PATH, "body": {"model": "m", "input": "a"}} for n in (1, 2, 3)
    ]
    given = tmp_path / "in.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Job(str(given), str(tmp_path / "job"), executor(1, app_name="app"), PATH)


@pytest.mark.parametrize("left", [0, 5, 0.5, -3])
def test_a_part_that_a_kill_left_half_written_counts_for_nothing(job: Job, tmp_path: Path, left: float) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    part(folder, "a.parquet", 1)
    torn = part(folder, "b.parquet", 2, 3)
    whole = torn.read_bytes()
    torn.write_bytes(whole[: int(len(whole) * left) if isinstance(left, float) else left])
    assert job.validate() == []
    counts = job.finish(Fault("batch_expired", "Too late."))
    assert (counts.completed, counts.failed) == (1, 2)
    assert job.progress().completed == 1
    [error, other] = [json.loads(line) for line in (folder / "errors.jsonl").read_text().splitlines()]
    assert (error["custom_id"], other["custom_id"]) == ("2", "3")
