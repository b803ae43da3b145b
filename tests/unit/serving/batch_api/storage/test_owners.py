"""What lists of one tenant cost, among what others have."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import pytest

from rayllm.access import ANYONE, Caller
from rayllm.serving.batch_api.objects import BatchRequest
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.stores import Stores, open_stores

ALICE, BOB = Caller("alice", "alice"), Caller("bob", "bob")
REQUEST = BatchRequest(input_file_id="file-1", endpoint="/v1/completions", completion_window="24h")


def put_file(stores: Stores, caller: Caller) -> str:
    return stores.files.put(BytesIO(b"{}"), 2, "f", "batch", tenant=caller.tenant).id


def put_batch(stores: Stores, caller: Caller) -> str:
    return stores.batches.create(REQUEST, caller).id


def list_files(stores: Stores, caller: Caller) -> list[str]:
    return [file.id for file in stores.files.page(Cursor(100), None, caller).entries]


def list_batches(stores: Stores, caller: Caller) -> list[str]:
    return [batch.id for batch in stores.batches.page(Cursor(100), caller).entries]


@pytest.mark.parametrize(("put", "read"), [(put_file, list_files), (put_batch, list_batches)], ids=["files", "batches"])
def test_what_others_have_is_read_once(
    put: Callable[[Stores, Caller], str],
    read: Callable[[Stores, Caller], list[str]],
    storage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_stores(storage)
    for _ in range(20):
        put(before, ALICE)
    mine = [put(before, BOB)]
    # Of another process, which finds them all there.
    stores = open_stores(storage)
    folder = stores.files._folder
    assert folder is stores.batches._folder
    found, original = set[str](), folder.read
    monkeypatch.setattr(folder, "read", lambda path: found.add(path.partition("/")[2]) or original(path))
    assert read(stores, BOB) == mine
    found.clear()
    assert read(stores, BOB) == mine
    assert found == {f"{mine[0]}.json"} | ({mine[0]} if put is put_batch else set())
    mine.insert(0, put(before, BOB))
    assert read(stores, BOB) == mine
    assert len(read(stores, ALICE)) == 20
    assert len(read(stores, ANYONE)) == 22
