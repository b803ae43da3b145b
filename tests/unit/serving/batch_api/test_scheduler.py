"""The scheduler: every batch gets a runner, and only one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import pytest

from rayllm.serving.batch_api import service as service_module
from rayllm.serving.batch_api.execution.lifecycle import MAX_ATTEMPTS
from rayllm.serving.batch_api.objects import Batch, BatchRequest
from rayllm.serving.batch_api.service import BatchScheduler
from rayllm.serving.batch_api.storage.stores import Stores, in_thread, open_stores
from tests.fakes.clock import pass_time, settle, until
from tests.unit.serving.batch_api.conftest import Clock
from tests.unit.serving.batch_api.work import KilledError, Runners


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_PERIOD_S", 0.02)


class Looks:
    """Counts how often schedulers look for batches."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def __call__(self, look: Callable[[], bool]) -> bool:
        self.begun += 1
        found = await in_thread(look)
        self.ended += 1
        return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr(service_module, "in_thread", looks := Looks())
    return looks


@pytest.fixture
def runners(stores: Stores) -> Runners:
    return Runners(stores)


@asynccontextmanager
async def kept(stores: Stores, start: Callable[[str], None], max_running: int = 2) -> AsyncIterator[BatchScheduler]:
    scheduler = BatchScheduler(stores, max_running, start)
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


def create(stores: Stores) -> Batch:
    file = stores.files.put(BytesIO(b'{"a": 1}'), 8, "requests.jsonl", "batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return stores.batches.create(BatchRequest.parse(asked))


def statuses(stores: Stores, batches: list[Batch]) -> set[str]:
    return {stores.batches.get(batch.id).status for batch in batches}


async def test_what_is_there_at_the_start_is_worked_on(stores: Stores, runners: Runners) -> None:
    batches = [create(stores) for _ in range(5)]
    async with kept(stores, runners.start):
        await until(lambda: statuses(stores, batches) == {"completed"})
    assert sorted(set(runners.started)) == sorted(batch.id for batch in batches)


async def test_a_new_batch_starts_when_the_scheduler_is_woken(stores: Stores, runners: Runners, looks: Looks) -> None:
    async with kept(stores, runners.start) as scheduler:
        await until(lambda: looks.ended == 1)
        batch = create(stores)
        await settle()
        pass_time(60)
        await settle()
        # Where nothing is unfinished, nobody looks every few seconds.
        assert looks.begun == 1
        scheduler.wake()
        await until(lambda: statuses(stores, [batch]) == {"completed"})


async def test_so_many_run_at_once_and_the_oldest_first(stores: Stores, runners: Runners, looks: Looks) -> None:
    go_on = threading.Event()
    runners.pause = lambda: (go_on.wait(10), None)[1]
    batches = sorted((create(stores) for _ in range(4)), key=lambda batch: batch.id)
    # Two routers do not make it twice as many.
    async with kept(stores, runners.start), kept(stores, runners.start):
        await until(lambda: statuses(stores, batches[:2]) == {"in_progress"})
        before = looks.begun
        await until(lambda: looks.ended > before + 3)
        assert statuses(stores, batches[2:]) == {"validating"}
        assert sorted(runners.started) == [batch.id for batch in batches[:2]]
        go_on.set()
        await until(lambda: statuses(stores, batches) == {"completed"})


async def test_one_that_waits_is_cancelled_at_once(stores: Stores, runners: Runners) -> None:
    go_on = threading.Event()
    runners.pause = lambda: (go_on.wait(10), None)[1]
    batches = sorted((create(stores) for _ in range(2)), key=lambda batch: batch.id)
    async with kept(stores, runners.start, max_running=1):
        await until(lambda: statuses(stores, batches[:1]) == {"in_progress"})
        stores.batches.cancel(batches[1].id)
        await until(lambda: statuses(stores, batches[1:]) == {"cancelled"})
        go_on.set()
        await until(lambda: statuses(stores, batches[:1]) == {"completed"})


async def test_a_runner_that_dies_is_followed_by_another(stores: Stores, runners: Runners) -> None:
    runners.life.left = 1
    batch = create(stores)
    async with kept(stores, runners.start):
        await until(lambda: len(runners.started) > 1)
        runners.life.left = 1000
        await until(lambda: statuses(stores, [batch]) == {"completed"})


async def test_batches_that_kill_their_runners_fail_and_other_batches_run_meanwhile(
    stores: Stores, runners: Runners
) -> None:
    go_on = threading.Event()
    batches = sorted((create(stores) for _ in range(5)), key=lambda batch: batch.id)
    killers, others = batches[:3], batches[3:]
    runners.deadly = {batch.id for batch in killers}
    runners.pause = lambda: (go_on.wait(10), None)[1]
    async with kept(stores, runners.start):
        # One of the two places is for those that have killed nobody.
        await until(lambda: statuses(stores, others[:1]) == {"in_progress"})
        go_on.set()
        await until(lambda: statuses(stores, others) == {"completed"})
        await until(lambda: statuses(stores, killers) == {"failed"})
    for batch in killers:
        # The next runner writes that it failed; another may come to remove its mark.
        assert runners.deaths[batch.id] == MAX_ATTEMPTS + 1
        assert runners.started.count(batch.id) >= MAX_ATTEMPTS + 2
        [error] = stores.batches.get(batch.id).errors.data  # type: ignore[union-attr]
        assert error.code == "batch_runner_died"
        assert f"died {MAX_ATTEMPTS} times without progress" in error.message
    await until(lambda: stores.batches.unfinished() == [])


async def test_a_runner_that_dies_after_it_got_further_is_always_followed_by_another(
    stores: Stores, runners: Runners
) -> None:
    lines = b'{"a": 1}\n' * (3 * MAX_ATTEMPTS)
    file = stores.files.put(BytesIO(lines), len(lines), "requests.jsonl", "batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = stores.batches.create(BatchRequest.parse(asked))
    steps = itertools.count()

    def die_at_every_other() -> None:
        if next(steps) % 2:
            raise KilledError

    runners.pause = die_at_every_other
    async with kept(stores, runners.start):
        await until(lambda: statuses(stores, [batch]) == {"completed"})
    assert len(runners.started) > MAX_ATTEMPTS + 1


async def test_trouble_passes(stores: Stores, runners: Runners, caplog: pytest.LogCaptureFixture) -> None:
    batch, troubles = create(stores), [ConnectionError("no cluster"), ConnectionError("no cluster")]

    def start(batch_id: str) -> None:
        if troubles:
            raise troubles.pop()
        runners.start(batch_id)

    async with kept(stores, start):
        await until(lambda: statuses(stores, [batch]) == {"completed"})
    assert "Batches cannot be scheduled now: ConnectionError('no cluster')" in caplog.text


async def test_files_whose_time_is_over_are_deleted(stores: Stores, runners: Runners, clock: Clock) -> None:
    file = stores.files.put(BytesIO(b"x"), 1, "x", "user_data", 3600)
    clock.now += 3600
    async with kept(stores, runners.start):
        await until(lambda: not Path(stores.files.address(file.id)).exists())


async def test_a_stopped_scheduler_starts_nothing(stores: Stores, runners: Runners, storage: str, looks: Looks) -> None:
    async with kept(stores, runners.start) as scheduler:
        # One that still looks when it is closed may start what is there.
        await until(lambda: looks.ended == 1)
    create(open_stores(storage))
    scheduler.wake()
    await settle()
    assert (looks.begun, runners.started) == (1, [])
