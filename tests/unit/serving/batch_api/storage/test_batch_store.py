"""The store of batches, and validation of batch requests."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.errors import ConflictError, ObjectNotFoundError, RequestError
from rayllm.serving.batch_api.objects import BATCH, Batch, BatchRequest, Status, created_at, new_id
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.stores import Stores
from rayllm.sources.storage import Folder
from tests.unit.serving.batch_api.conftest import Clock

ASKED = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def create(stores: Stores, **fields: Any) -> Batch:
    return stores.batches.create(BatchRequest.parse(ASKED | fields))


def become(stores: Stores, batch: Batch, status: Status) -> None:
    stores.batches.save(batch.model_copy(update={"status": status}))


def test_a_batch_begins_in_validating(stores: Stores, clock: Clock) -> None:
    batch = create(stores, metadata={"a": "b"})
    made = int(clock.now)
    assert batch.public() == {
        "id": batch.id,
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "errors": None,
        "input_file_id": "file-x",
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": made,
        "in_progress_at": None,
        "expires_at": made + 86400,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": {"a": "b"},
    }
    assert stores.batches.get(batch.id) == batch


@pytest.mark.parametrize(("window", "seconds"), [("24h", 86400), ("90m", 5400), ("1s", 1), ("30d", 30 * 86400)])
def test_windows(window: str, seconds: int) -> None:
    assert BatchRequest.parse(ASKED | {"completion_window": window}).window_s == seconds


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"completion_window": "31d"}, "completion_window", "at most 30 days"),
        ({"completion_window": "0h"}, "completion_window", "such as `24h`"),
        ({"completion_window": "24"}, "completion_window", "such as `24h`"),
        ({"completion_window": "24h\n"}, "completion_window", "such as `24h`"),
        ({"completion_window": "٣h"}, "completion_window", "such as `24h`"),
        ({"completion_window": 24}, "completion_window", "valid string"),
        ({"endpoint": "/v1/files"}, "endpoint", "must be one of /v1/chat/completions"),
        ({"endpoint": "/v1/audio/transcriptions"}, "endpoint", "must be one of"),
        ({"input_file_id": None}, "input_file_id", "valid string"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "may have 16 pairs, not 17"),
        ({"metadata": {"k" * 65: ""}}, "metadata", "keys may have 64 characters"),
        ({"metadata": {"k": "v" * 513}}, "metadata", "values may have 512 characters; that of `k` has 513"),
        ({"metadata": {"k": 1}}, "metadata.k", "valid string"),
        ({"metadata": []}, "metadata", "valid dictionary"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds", "3600"),
        ({"output_expires_after": {"anchor": "x", "seconds": 3600}}, "output_expires_after.anchor", "created_at"),
        ({"priority": 1}, "priority", "is not a known field; use input_file_id"),
    ],
)
def test_a_wrong_request_is_refused(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        BatchRequest.parse(ASKED | fields)
    assert caught.value.param == param
    assert said in caught.value.message


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RequestError, match="`endpoint` is required") as caught:
        BatchRequest.parse({key: value for key, value in ASKED.items() if key != "endpoint"})
    assert caught.value.param == "endpoint"


def test_metadata_at_its_limits_is_accepted() -> None:
    metadata = {f"{number:064d}": "v" * 512 for number in range(16)}
    assert BatchRequest.parse(ASKED | {"metadata": metadata}).metadata == metadata
    assert BatchRequest.parse(ASKED | {"metadata": None}).metadata is None


@pytest.mark.parametrize("name", ["", "x", "../files/x", BATCH + "0" * 32, "file-" + "0" * 32])
def test_what_is_no_id_means_no_batch(stores: Stores, name: str) -> None:
    for use in (stores.batches.get, stores.batches.cancel):
        with pytest.raises(ObjectNotFoundError, match="There is no batch"):
            use(name)


@pytest.mark.parametrize("status", ["validating", "in_progress"])
def test_a_batch_under_way_is_cancelled_once(stores: Stores, clock: Clock, status: Status) -> None:
    batch = create(stores)
    become(stores, batch, status)
    cancelled = stores.batches.cancel(batch.id)
    assert (cancelled.status, cancelled.cancelling_at) == ("cancelling", int(clock.now))
    clock.now += 100
    assert stores.batches.cancel(batch.id) == stores.batches.get(batch.id) == cancelled


@pytest.mark.parametrize("status", ["finalizing", "completed", "failed", "expired", "cancelled"])
def test_it_may_be_too_late_to_cancel(stores: Stores, status: Status) -> None:
    batch = create(stores)
    become(stores, batch, status)
    with pytest.raises(ConflictError, match=f"The batch is `{status}`"):
        stores.batches.cancel(batch.id)
    assert stores.batches.get(batch.id).status == status


def test_files_with_answers_are_shown_when_they_are_there(stores: Stores) -> None:
    batch = create(stores)
    for status, shown in (("finalizing", None), ("completed", "file-out")):
        named = batch.model_copy(update={"status": status, "output_file_id": "file-out", "error_file_id": "file-err"})
        stores.batches.save(named)
        assert stores.batches.get(batch.id).public()["output_file_id"] == shown


def test_the_oldest_batches_are_due_and_those_that_only_have_to_end(stores: Stores, clock: Clock) -> None:
    batches = [create(stores, completion_window="2h" if number == 4 else "24h") for number in range(6)]
    # Batches of the same moment are in the order of their random ids.
    ids, expired = sorted(batch.id for batch in batches), batches[4].id
    cancelled = next(name for name in ids[2:] if name != expired)
    assert stores.batches.due(2) == ids[:2]
    stores.batches.cancel(cancelled)
    assert stores.batches.due(2) == [ids[0], ids[1], cancelled]
    clock.now += 7200
    working = [name for name in ids if name not in (cancelled, expired)]
    assert stores.batches.due(2) == [*working[:2], *sorted([cancelled, expired])]
    stores.batches.cancel(working[0])
    assert working[0] in stores.batches.due(2)
    for batch in batches:
        stores.batches.close(batch)
    assert stores.batches.due(2) == []
    assert len(stores.batches.page(Cursor(20)).entries) == 6


def test_inputs_of_unfinished_batches_are_known(stores: Stores) -> None:
    one, two = create(stores, input_file_id="file-1"), create(stores, input_file_id="file-2")
    assert stores.batches.inputs() == {"file-1": one.id, "file-2": two.id}
    become(stores, one, "completed")
    assert stores.batches.inputs() == {"file-2": two.id}


def test_a_mark_of_a_batch_that_was_never_written_down_goes(stores: Stores, clock: Clock, storage: str) -> None:
    name = new_id(BATCH)
    Folder(storage).write(f"unfinished/{name}.1", b"")
    kept = create(stores)
    clock.now = created_at(name) + 30
    stores.batches.delete_stale_marks()
    assert {entry.id for entry in stores.batches.unfinished()} == {name, kept.id}
    clock.now = created_at(name) + 90
    stores.batches.delete_stale_marks()
    assert {entry.id for entry in stores.batches.unfinished()} == {kept.id}
