"""Local folders and folders in S3 and Cloud Storage, which behave alike."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from rayllm.core.errors import StorageError
from rayllm.sources.storage import Folder, open_folder
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server

# Larger than one part of a multipart upload.
LARGE = bytes(range(256)) * 50_000


@pytest.fixture(params=["local", "s3", "gs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, place: str) -> Folder:
    """An empty folder of each kind."""
    if request.param == "local":
        return Folder(str(tmp_path / "kept"))
    server: S3Server | GcsServer = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[request.param])
    server.put(place, {"another": b""})
    return Folder(f"{request.param}://{place}/kept/here/")


def test_write_and_read(folder: Folder) -> None:
    folder.write("a/b/c.json", b"one")
    assert folder.read("a/b/c.json") == b"one"
    folder.write("a/b/c.json", b"two")
    assert folder.read("a/b/c.json") == b"two"


def test_large_file_is_streamed(folder: Folder) -> None:
    source = BytesIO(b"begins later" + LARGE)
    source.seek(len("begins later"))
    folder.write("large", source)
    with folder.open("large") as file:
        assert file.read(1000) == LARGE[:1000]
        assert file.read() == LARGE[1000:]


def test_missing_file(folder: Folder) -> None:
    for missing in ("nothing", "no/folder/nothing"):
        with pytest.raises(FileNotFoundError):
            folder.read(missing)
        with pytest.raises(FileNotFoundError):
            folder.open(missing)
        assert folder.size(missing) is None
        folder.delete(missing)
        folder.delete_folder(missing)


def test_names_exclude_subfolders(folder: Folder) -> None:
    assert folder.names("a") == []
    for path in ("a/2", "a/1", "a/sub/3", "b/4"):
        folder.write(path, b"x")
    assert folder.names("a") == ["1", "2"]


def test_delete(folder: Folder) -> None:
    for path in ("a/1", "a/2", "a/sub/3", "b/4"):
        folder.write(path, b"x")
    folder.delete("a/1")
    assert folder.size("a/1") is None
    assert folder.size("a/2") == 1
    folder.delete_folder("a")
    assert folder.names("a") == []
    assert folder.size("b/4") == 1


def test_failed_write_leaves_nothing_behind(folder: Folder) -> None:
    class Breaks(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 2_000_000:
                raise OSError("the client's file broke")
            return super().read(size)

    with pytest.raises(StorageError, match=r"kept.*/a/file cannot be written: the client's file broke"):
        folder.write("a/file", Breaks(LARGE))
    assert folder.names("a") == []
    assert folder.size("a/file") is None


def test_address(folder: Folder) -> None:
    folder.write("a/file", b"x")
    files, path = open_folder(folder.address("a/file"))
    assert files.open_input_stream(path).read() == b"x"


def test_file_system_can_be_pickled(folder: Folder) -> None:
    folder.write("a/file", b"x")
    files, path = pickle.loads(pickle.dumps(open_folder(folder.uri)))
    assert files.open_input_stream(f"{path}/a/file").read() == b"x"


def test_folder_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/a cannot be written: .*File exists"):
        Folder(str(tmp_path / "file")).write("a", b"x")


@pytest.mark.parametrize("use", [lambda folder: folder.write("a", b"x"), lambda folder: folder.names("a")])
def test_missing_bucket(s3: S3Server, gcs: GcsServer, place: str, use: Callable[[Folder], object]) -> None:
    for scheme in ("s3", "gs"):
        with pytest.raises(StorageError, match=f"{scheme}://{place}: there is no bucket `{place}`; check its name"):
            use(Folder(f"{scheme}://{place}/x"))


def test_a_file_that_is_replaced_keeps_its_mode_and_its_owner(tmp_path: Path) -> None:
    folder, path = Folder(str(tmp_path)), tmp_path / "file"
    folder.write("file", b"1", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1235)
    before = path.stat()
    folder.write("file", b"2", mode=0o600)
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"2", [path])
