"""The lifecycle of a batch: every final state, and crashes at every step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from rayllm.core.errors import ConflictError, ModelNotFoundError, StorageError
from rayllm.serving.batch_api.objects import Batch, BatchRequest
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.batch_store import BatchStore
from rayllm.serving.batch_api.storage.file_store import FileStore
from rayllm.serving.batch_api.storage.stores import Stores, open_stores
from tests.unit.serving.batch_api.conftest import Clock
from tests.unit.serving.batch_api.work import Counts, Job, KilledError, Life, MortalFolder, Runners

LINES = ['{"a": 1}', '{"b": 2}', '{"fail": 3}', '{"c": 4}']
ANSWERS, FAILURES = '{"A": 1}\n{"B": 2}\n{"C": 4}\n', '{"FAIL": 3}\n'


@pytest.fixture
def runners(stores: Stores) -> Runners:
    return Runners(stores)


def create(stores: Stores, lines: list[str] = LINES, window: str = "24h", lifetime_s: int | None = None) -> Batch:
    content = "\n".join(lines).encode()
    file = stores.files.put(BytesIO(content), len(content), "requests.jsonl", "batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": window}
    if lifetime_s:
        asked["output_expires_after"] = {"anchor": "created_at", "seconds": lifetime_s}  # type: ignore[assignment]
    return stores.batches.create(BatchRequest.parse(asked))


def content(stores: Stores, file_id: str | None) -> str | None:
    if file_id is None:
        return None
    with stores.files.open(file_id) as file:
        return bytes(file.read()).decode()


def counts(batch: Batch) -> tuple[int, int, int]:
    counts = batch.request_counts
    return counts.total, counts.completed, counts.failed


def left_over(storage: str) -> set[str]:
    """The kinds of files that are there for unfinished batches only."""
    kinds = {path.relative_to(storage).parts[0] for path in Path(storage).rglob("*") if path.is_file()}
    return kinds & {"unfinished", "cancellations", "jobs"}


def test_a_batch_is_completed(runners: Runners, stores: Stores, clock: Clock, storage: str) -> None:
    made = create(stores, lifetime_s=7200)
    clock.now += 10
    runners.run(made.id)
    batch, now = stores.batches.get(made.id), int(clock.now)
    assert (batch.status, batch.errors, counts(batch)) == ("completed", None, (4, 3, 1))
    assert (batch.in_progress_at, batch.finalizing_at, batch.completed_at) == (now, now, now)
    assert (batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at) == (None, None, None, None)
    assert content(stores, batch.output_file_id) == ANSWERS
    assert content(stores, batch.error_file_id) == FAILURES
    output = stores.files.get(str(batch.output_file_id))
    assert (output.filename, output.purpose) == (f"{batch.id}_output.jsonl", "batch_output")
    assert (output.bytes, output.expires_at) == (len(ANSWERS), now + 7200)
    assert left_over(storage) == set()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_batch_in_a_bucket(scheme: str, request: pytest.FixtureRequest, place: str) -> None:
    server = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[scheme])
    server.put(place, {"another": b""})
    stores = open_stores(f"{scheme}://{place}/batches")
    made = create(stores, window="1h")
    assert stores.batches.due(1) == [made.id]
    Runners(stores).run(made.id)
    assert stores.batches.due(1) == []
    [batch] = stores.batches.page(Cursor(20)).entries
    assert (batch.id, batch.status, counts(batch)) == (made.id, "completed", (4, 3, 1))
    assert content(stores, batch.output_file_id) == ANSWERS
    files = stores.files.page(Cursor(20), None).entries
    assert {file.id for file in files} == {batch.input_file_id, batch.output_file_id, batch.error_file_id}
    assert stores.batches.job_folder(batch.id).names("") == []
    with pytest.raises(ConflictError):
        stores.batches.cancel(batch.id)


def test_a_file_that_would_be_empty_is_not_made(runners: Runners, stores: Stores) -> None:
    good, bad = create(stores, ['{"a": 1}']), create(stores, ['{"fail": 1}'])
    for batch in (good, bad):
        runners.run(batch.id)
    assert stores.batches.get(good.id).error_file_id is None
    assert stores.batches.get(bad.id).output_file_id is None
    assert content(stores, stores.batches.get(bad.id).error_file_id) == '{"FAIL": 1}\n'


def test_faults_of_the_file_are_told(runners: Runners, stores: Stores, storage: str) -> None:
    made = create(stores, ['{"a": 1}', "nonsense"])
    runners.run(made.id)
    batch = stores.batches.get(made.id)
    assert (batch.status, batch.failed_at is not None, batch.in_progress_at) == ("failed", True, None)
    assert batch.public()["errors"] == {
        "object": "list",
        "data": [{"code": "invalid_json_line", "message": "No JSON.", "line": 2, "param": None}],
    }
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert left_over(storage) == set()


def test_a_job_that_cannot_be_made_fails_the_batch(stores: Stores) -> None:
    class Refusing(Runners):
        def _job(self, batch: Batch) -> Job:
            raise ModelNotFoundError("The model `x` does not exist.", "model")

    made = create(stores)
    Refusing(stores).run(made.id)
    batch = stores.batches.get(made.id)
    assert batch.status == "failed"
    assert batch.public()["errors"]["data"] == [
        {"code": "model_not_found", "message": "The model `x` does not exist.", "line": None, "param": "model"}
    ]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ModelNotFoundError("The model is gone."), "model_not_found", "The model is gone."),
        (ZeroDivisionError("internals"), "server_error", "The service failed on this batch; its log says why."),
        (MemoryError(), "out_of_memory", "The file takes too much memory; send it in smaller parts."),
    ],
)
def test_a_job_that_breaks_off_keeps_what_it_has(
    runners: Runners, stores: Stores, error: Exception, code: str, message: str
) -> None:
    runners.error = error
    made = create(stores)
    runners.run(made.id)
    batch = stores.batches.get(made.id)
    assert batch.errors is not None
    assert (batch.status, [(e.code, e.message) for e in batch.errors.data]) == ("failed", [(code, message)])
    assert content(stores, batch.output_file_id) == '{"A": 1}\n'
    assert content(stores, batch.error_file_id) == "".join(f'{{"line": {n}, "error": "{code}"}}\n' for n in (2, 3, 4))


def at(pauses: int, stopped: threading.Event, act: Callable[[], object]) -> Callable[[], None]:
    """A pause of a job's that does something at the n-th answer, and waits until the job is stopped for it."""
    seen = 0

    def pause() -> None:
        nonlocal seen
        seen += 1
        if seen == pauses:
            act()
            assert stopped.wait(60)

    return pause


def test_a_cancelled_batch_keeps_what_is_done(runners: Runners, stores: Stores, clock: Clock, storage: str) -> None:
    made = create(stores)
    runners.pause = at(3, runners.stopped, lambda: stores.batches.cancel(made.id))
    runners.run(made.id)
    batch = stores.batches.get(made.id)
    assert (batch.status, counts(batch)) == ("cancelled", (4, 2, 0))
    assert (batch.cancelling_at, batch.cancelled_at) == (int(clock.now), int(clock.now))
    assert batch.finalizing_at is None
    assert content(stores, batch.output_file_id) == '{"A": 1}\n{"B": 2}\n'
    assert batch.error_file_id is None
    assert left_over(storage) == set()


def test_a_batch_that_is_cancelled_while_it_waits_is_never_begun(
    runners: Runners, stores: Stores, storage: str
) -> None:
    made = create(stores)
    stores.batches.cancel(made.id)
    runners.life.left = 0
    runners.run(made.id)
    batch = stores.batches.get(made.id)
    assert (batch.status, batch.in_progress_at, batch.output_file_id) == ("cancelled", None, None)
    assert batch.cancelling_at is not None
    assert left_over(storage) == set()


def test_an_expired_batch_tells_what_was_not_done(runners: Runners, stores: Stores, clock: Clock) -> None:
    made = create(stores, window="1h")
    runners.pause = at(3, runners.stopped, lambda: setattr(clock, "now", clock.now + 3600))
    runners.run(made.id)
    batch = stores.batches.get(made.id)
    assert (batch.status, counts(batch), batch.expired_at) == ("expired", (4, 2, 2), int(clock.now))
    assert content(stores, batch.output_file_id) == '{"A": 1}\n{"B": 2}\n'
    assert content(stores, batch.error_file_id) == "".join(
        f'{{"line": {n}, "error": "batch_expired"}}\n' for n in (3, 4)
    )


def test_a_batch_that_expires_while_it_waits_is_never_begun(runners: Runners, stores: Stores, clock: Clock) -> None:
    made = create(stores, window="1h")
    clock.now += 3600
    runners.run(made.id)
    batch = stores.batches.get(made.id)
    assert (batch.status, counts(batch), batch.in_progress_at) == ("expired", (4, 0, 4), None)
    assert batch.output_file_id is None


def test_progress_is_seen_on_the_way(runners: Runners, stores: Stores) -> None:
    made, seen = create(stores), []
    runners.pause = lambda: seen.append(stores.batches.get(made.id))
    runners.run(made.id)
    assert [(batch.status, counts(batch)) for batch in seen] == [
        ("in_progress", (4, 0, 0)),
        ("in_progress", (4, 1, 0)),
        ("in_progress", (4, 2, 0)),
        ("in_progress", (4, 3, 0)),
    ]


def test_a_job_that_tells_late_is_not_heard(stores: Stores) -> None:
    callbacks: list[Callable[[Counts], None]] = []

    class Late(Runners):
        def _job(self, batch: Batch) -> Job:
            job: Job = super()._job(batch)
            run = job.run

            def heard(on_progress: Callable[[Counts], None]) -> None:
                callbacks.append(on_progress)
                run(on_progress)

            job.run = heard  # type: ignore[method-assign]
            return job

    made = create(stores)
    Late(stores).run(made.id)
    callbacks[0](Counts(4, 1, 0))
    assert (stores.batches.get(made.id).status, counts(stores.batches.get(made.id))) == ("completed", (4, 3, 1))


def test_storage_that_fails_leaves_the_batch_to_the_next_runner(runners: Runners, stores: Stores) -> None:
    made = create(stores)
    runners.error = StorageError("The bucket is gone.")
    with pytest.raises(StorageError):
        runners.run(made.id)
    assert stores.batches.get(made.id).status == "in_progress"
    runners.error = None
    runners.run(made.id)
    assert (stores.batches.get(made.id).status, counts(stores.batches.get(made.id))) == ("completed", (4, 3, 1))


def mortal(storage: str, clock: Clock, steps: int) -> Runners:
    life = Life(steps)
    folder = MortalFolder(storage, life)
    return Runners(Stores(FileStore(folder, clock), BatchStore(folder, clock)), life)


@pytest.mark.parametrize("ending", ["completed", "cancelled", "expired", "failed"])
def test_a_runner_may_die_at_every_step(stores: Stores, storage: str, clock: Clock, ending: str) -> None:
    """Before each change that it makes, one after the other; the next runner always comes to the same end."""
    steps, has_died = 0, True
    while has_died:
        made = create(stores, ["{}", "nonsense"] if ending == "failed" else LINES, window="1h")
        first = mortal(storage, clock, steps)
        if ending == "cancelled":
            first.pause = at(3, first.stopped, lambda made=made: stores.batches.cancel(made.id))  # type: ignore[misc]
        elif ending == "expired":
            first.pause = at(3, first.stopped, lambda: setattr(clock, "now", clock.now + 3600))
        has_died = died(first, made.id)
        second = Runners(stores, pause=first.pause, stopped=first.stopped)
        second.run(made.id)
        batch = stores.batches.get(made.id)
        assert batch.status == ending
        outputs = [file for file in stores.files.page(Cursor(100), "batch_output").entries if batch.id in file.filename]
        assert {file.id for file in outputs} == {batch.output_file_id, batch.error_file_id} - {None}
        if ending == "completed":
            assert (content(stores, batch.output_file_id), content(stores, batch.error_file_id)) == (ANSWERS, FAILURES)
            assert counts(batch) == (4, 3, 1)
        assert left_over(storage) == set()
        steps += 1
    assert steps > 4


def died(runners: Runners, batch_id: str) -> bool:
    try:
        runners.run(batch_id)
    except KilledError:
        return True
    return False
