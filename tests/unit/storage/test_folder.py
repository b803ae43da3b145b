"""Folders on a disk, in S3 and in Cloud Storage, which all do the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from rayllm.errors import StorageError
from rayllm.storage import Folder, open_folder
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server

# More than one part of an upload.
LARGE = bytes(range(256)) * 50_000


@pytest.fixture(params=["local", "s3", "gs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, place: str) -> Folder:
    """An empty folder of each kind."""
    if request.param == "local":
        return Folder(str(tmp_path / "kept"))
    server: S3Server | GcsServer = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[request.param])
    server.put(place, {"another": b""})
    return Folder(f"{request.param}://{place}/kept/here/")


def test_what_was_written_is_read(folder: Folder) -> None:
    folder.write("a/b/c.json", b"one")
    assert folder.read("a/b/c.json") == b"one"
    folder.write("a/b/c.json", b"two")
    assert folder.read("a/b/c.json") == b"two"


def test_a_large_file_goes_through_in_pieces(folder: Folder) -> None:
    source = BytesIO(b"begins later" + LARGE)
    source.seek(len("begins later"))
    folder.write("large", source)
    with folder.open("large") as file:
        assert file.read(1000) == LARGE[:1000]
        assert file.read() == LARGE[1000:]


def test_a_missing_file_is_a_matter_of_its_own(folder: Folder) -> None:
    for missing in ("nothing", "no/folder/nothing"):
        with pytest.raises(FileNotFoundError):
            folder.read(missing)
        with pytest.raises(FileNotFoundError):
            folder.open(missing)
        assert folder.size(missing) is None
        folder.delete(missing)
        folder.delete_folder(missing)


def test_names_are_those_of_the_files_directly_in_a_folder(folder: Folder) -> None:
    assert folder.names("a") == []
    for path in ("a/2", "a/1", "a/sub/3", "b/4"):
        folder.write(path, b"x")
    assert folder.names("a") == ["1", "2"]


def test_what_was_deleted_is_gone(folder: Folder) -> None:
    for path in ("a/1", "a/2", "a/sub/3", "b/4"):
        folder.write(path, b"x")
    folder.delete("a/1")
    assert folder.size("a/1") is None
    assert folder.size("a/2") == 1
    folder.delete_folder("a")
    assert folder.names("a") == []
    assert folder.size("b/4") == 1


def test_an_upload_that_breaks_leaves_nothing(folder: Folder) -> None:
    class Breaks(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 2_000_000:
                raise OSError("the client's file broke")
            return super().read(size)

    with pytest.raises(StorageError, match=r"kept.*/a/file cannot be written: the client's file broke"):
        folder.write("a/file", Breaks(LARGE))
    assert folder.names("a") == []
    assert folder.size("a/file") is None


def test_others_find_a_file_by_its_address(folder: Folder) -> None:
    folder.write("a/file", b"x")
    files, path = open_folder(folder.address("a/file"))
    assert files.open_input_stream(path).read() == b"x"


def test_ray_may_take_the_file_system_to_another_process(folder: Folder) -> None:
    folder.write("a/file", b"x")
    files, path = pickle.loads(pickle.dumps(open_folder(folder.uri)))
    assert files.open_input_stream(f"{path}/a/file").read() == b"x"


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/a cannot be written: .*File exists"):
        Folder(str(tmp_path / "file")).write("a", b"x")


@pytest.mark.parametrize("use", [lambda folder: folder.write("a", b"x"), lambda folder: folder.names("a")])
def test_a_missing_bucket(s3: S3Server, gcs: GcsServer, place: str, use: Callable[[Folder], object]) -> None:
    for scheme in ("s3", "gs"):
        with pytest.raises(StorageError, match=f"{scheme}://{place}: there is no bucket `{place}`; check its name"):
            use(Folder(f"{scheme}://{place}/x"))
