"""A job of a few requests, and what it makes of the answers that it finds in its folder."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayllm.batch.config import RequestProcessorConfig
from rayllm.batch.files import job as job_module
from rayllm.batch.files.job import Job
from rayllm.batch.files.jsonl import LONGEST_LINE, Fault
from rayllm.batch.rows import ERROR, Row
from rayllm.core.errors import StorageError

PATH = "/v1/embeddings"
EXECUTOR = RequestProcessorConfig(app_name="app", max_pending_requests=1, show_progress=False)


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
    return Job(str(given), str(tmp_path / "job"), EXECUTOR, PATH)


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


class Application:
    """In place of the stage that sends requests to a running application: answers all but some inputs at once."""

    def __init__(self, *unanswered: str) -> None:
        self.unanswered = unanswered
        self.started: list[Row] = []
        self.futures: list[Future[Row]] = []

    def __call__(self, app_name: str, max_pending: int, caller: Any) -> Application:
        assert (app_name, max_pending) == ("app", 1)
        return self

    def start(self, row: Row) -> Future[Row]:
        self.started.append(row)
        future: Future[Row] = Future()
        self.futures.append(future)
        given = row["body"]["input"]
        if given == "broken":
            future.set_result({**row, ERROR: "It broke."})
        elif given not in self.unanswered:
            future.set_result({**row, "status_code": 400 if given == "bad" else 200, "response": {"of": given}})
        return future


def job_of(folder: Path, *inputs: str) -> Job:
    lines = [{"custom_id": each, "url": PATH, "body": {"model": "m", "input": each}} for each in inputs]
    given = folder / "in.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = Job(str(given), str(folder / "job"), EXECUTOR, PATH)
    assert made.validate() == []
    return made


def test_a_few_requests_need_no_job_of_ray_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "DeployedRequestStage", Application())
    job, seen = job_of(tmp_path, "good", "bad", "broken"), []
    job.run(lambda counts: seen.append((counts.completed, counts.failed)))
    assert seen[-1] == (1, 2)
    counts = job.finish()
    assert (counts.total, counts.completed, counts.failed) == (3, 1, 2)
    [good] = [json.loads(line) for line in (tmp_path / "job" / "output.jsonl").read_text().splitlines()]
    assert (good["custom_id"], good["response"]["body"]) == ("good", {"of": "good"})
    bad, broken = [json.loads(line) for line in (tmp_path / "job" / "errors.jsonl").read_text().splitlines()]
    assert (bad["response"]["status_code"], broken["error"]["message"]) == (400, "It broke.")


def test_an_interrupted_small_job_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_PERIOD_S", 0.01)
    monkeypatch.setattr(job_module, "DeployedRequestStage", first := Application("b"))
    job = job_of(tmp_path, "a", "b", "c")
    job.run(lambda counts: job.stop())
    assert [each.cancelled() for each in first.futures] == [False, True, False]
    monkeypatch.setattr(job_module, "DeployedRequestStage", second := Application())
    job = job_of(tmp_path, "a", "b", "c")
    job.run()
    assert [row["body"]["input"] for row in second.started] == ["b"]
    assert job.finish().completed == 3


def test_results_that_cannot_be_kept_leave_no_request_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "_PERIOD_S", 0.01)
    monkeypatch.setattr(job_module, "DeployedRequestStage", application := Application("b"))

    def fail(*arguments: Any) -> None:
        raise StorageError("The disk is full.")

    monkeypatch.setattr(job_module, "write_part", fail)
    with pytest.raises(StorageError):
        job_of(tmp_path, "a", "b").run()
    assert application.futures[1].cancelled()


def test_long_requests_are_kept_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "DeployedRequestStage", application := Application())
    job_of(tmp_path, "a")
    text = json.dumps({"custom_id": "b", "url": PATH, "body": {"model": "m", "input": "x" * (LONGEST_LINE + 1)}})
    (tmp_path / "in.jsonl").write_text(text)
    job = Job(str(tmp_path / "in.jsonl"), str(tmp_path / "job"), EXECUTOR, PATH, None, 2 * LONGEST_LINE)
    assert job.validate() == []
    job.run()
    assert len(application.started) == 1
    assert job.finish().completed == 1
