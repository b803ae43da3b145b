"""The store of files."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import pytest

from rayllm.core.errors import ObjectNotFoundError, StorageError
from rayllm.serving.batch_api.objects import File
from rayllm.serving.batch_api.page import Cursor
from rayllm.serving.batch_api.storage.file_store import Usage
from rayllm.serving.batch_api.storage.stores import Stores
from tests.unit.serving.batch_api.conftest import Clock

ALL = Cursor(100)


def put(stores: Stores, content: bytes = b"{}", purpose: str = "batch", lifetime_s: int | None = None) -> File:
    return stores.files.put(BytesIO(content), len(content), "requests.jsonl", purpose, lifetime_s)


def read(stores: Stores, file: File) -> bytes:
    with stores.files.open(file.id) as content:
        return bytes(content.read())


def everything(folder: str) -> set[str]:
    return {path.parent.name for path in Path(folder).rglob("*") if path.is_file()}


def test_a_file_is_kept(stores: Stores, clock: Clock) -> None:
    file = put(stores, b"content")
    assert file.public() == {
        "id": file.id,
        "object": "file",
        "bytes": 7,
        "created_at": int(clock.now),
        "filename": "requests.jsonl",
        "purpose": "batch",
        "status": "processed",
        "expires_at": None,
    }
    assert stores.files.get(file.id) == file
    assert read(stores, file) == b"content"
    assert Path(stores.files.address(file.id)).read_bytes() == b"content"


def test_a_deleted_file_is_gone(stores: Stores, storage: str) -> None:
    file, other = put(stores), put(stores)
    stores.files.delete(file.id)
    for use in (stores.files.get, stores.files.open, stores.files.delete):
        with pytest.raises(ObjectNotFoundError, match=f"There is no file `{file.id}`"):
            use(file.id)
    assert stores.files.page(ALL, None).entries == [other]
    stores.files.delete(other.id)
    assert everything(storage) == set()


@pytest.mark.parametrize("name", ["", "x", "../batches/x", "file-" + "0" * 32, "a\x00b", "file-" + "x" * 10_000])
def test_what_is_no_id_means_no_file(stores: Stores, name: str) -> None:
    with pytest.raises(ObjectNotFoundError) as caught:
        stores.files.get(name)
    assert len(caught.value.message) < 200


def test_files_of_one_purpose(stores: Stores) -> None:
    files = [put(stores, purpose=purpose) for purpose in ("batch", "vision", "batch")]
    assert {file.id for file in stores.files.page(ALL, "batch").entries} == {files[0].id, files[2].id}
    assert stores.files.page(ALL, "evals").entries == []


def test_a_file_ends_when_its_time_is_over(stores: Stores, clock: Clock, storage: str) -> None:
    file, other = put(stores, lifetime_s=3600), put(stores)
    assert file.expires_at == int(clock.now) + 3600
    clock.now += 3599
    stores.files.sweep(set)
    assert read(stores, file) == b"{}"
    clock.now += 1
    with pytest.raises(ObjectNotFoundError):
        stores.files.get(file.id)
    assert stores.files.page(ALL, None).entries == [other]
    stores.files.sweep(set)
    stores.files.delete(other.id)
    assert everything(storage) == set()


def test_a_file_in_use_outlives_its_time(stores: Stores, clock: Clock) -> None:
    file = put(stores, lifetime_s=3600)
    clock.now += 3600
    stores.files.sweep(lambda: {file.id})
    assert Path(stores.files.address(file.id)).exists()
    stores.files.sweep(set)
    assert not Path(stores.files.address(file.id)).exists()


def test_who_uses_files_is_asked_only_where_one_is_due(stores: Stores) -> None:
    put(stores, lifetime_s=3600)

    def used() -> set[str]:
        raise AssertionError

    stores.files.sweep(used)


def test_what_a_process_left_half_brought_goes_in_time(stores: Stores, storage: str) -> None:
    kept = put(stores)
    contents = Path(storage, "contents")
    fresh, old = contents / ".file-fresh.tmp", contents / ".file-old.tmp"
    orphan = contents / ("file-" + "0" * 32)
    for path in (fresh, old, orphan):
        path.write_bytes(b"x" * 100)
    for path in (old, orphan, contents / kept.id):
        os.utime(path, (0, 0))
    assert stores.files.usage() == Usage(4, 302)
    stores.files.sweep(list)
    assert {path.name for path in contents.iterdir()} == {kept.id, fresh.name}


def test_a_file_that_cannot_be_described_leaves_no_content(stores: Stores, storage: str) -> None:
    Path(storage).mkdir()
    Path(storage, "files").write_text("in the way")
    with pytest.raises(StorageError):
        put(stores)
    assert list(Path(storage, "contents").iterdir()) == []
