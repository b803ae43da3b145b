"""The cache of one node: eviction, integrity and disk errors."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayllm.core.errors import SourceError
from rayllm.core.settings import settings
from rayllm.sources import node_cache
from rayllm.sources.cache import Cache, Entry
from rayllm.sources.cache import cache as module
from rayllm.sources.cache import entry as entry_module
from tests.servers.faults import FaultProxy
from tests.servers.s3 import S3Server
from tests.unit.sources.downloads import MODEL, WEIGHTS, assert_nothing_left, contents, fetch_entry


@pytest.fixture
def uri(s3_proxy: FaultProxy, s3: S3Server, place: str) -> str:
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"s3://{place}/m"


@pytest.fixture
def cache(cache_folder: Path) -> Cache:
    """A second cache in the same folder, as another process would have."""
    return Cache(cache_folder / "sources")


@pytest.fixture
def models(s3: S3Server, s3_proxy: FaultProxy, place: str) -> list[str]:
    """Three models of 100 kB."""
    for name in "abc":
        s3.put(place, {f"{name}/w": name.encode() * 100_000})
    return [f"s3://{place}/{name}" for name in "abc"]


@pytest.fixture
def budget(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """A cache with room for two of the models."""
    cache = Cache(cache_folder / "sources", max_bytes=250_000)
    monkeypatch.setattr("tests.unit.sources.downloads.node_cache", lambda: cache)
    return cache


def unused(cache: Cache, *entries: Entry) -> None:
    for age, entry in enumerate(reversed(entries)):
        cache.release(entry)
        os.utime(entry.use_lock, (1000 - age, 1000 - age))


def test_least_recently_used_entry_is_evicted(budget: Cache, models: list[str]) -> None:
    first, second = fetch_entry(models[0]), fetch_entry(models[1])
    unused(budget, second, first)
    third = fetch_entry(models[2])
    assert [entry.root.exists() for entry in (first, second, third)] == [True, False, True]


def test_entry_is_in_use_until_released_as_often_as_acquired(budget: Cache, models: list[str]) -> None:
    first, again = fetch_entry(models[0]), fetch_entry(models[0])
    assert first == again
    budget.release(first)
    fetch_entry(models[1])
    with pytest.raises(SourceError, match="nothing unused to remove"):
        fetch_entry(models[2])
    budget.release(again)
    fetch_entry(models[2])
    assert not first.root.exists()


def test_entry_in_use_is_not_evicted(budget: Cache, models: list[str]) -> None:
    first, second = fetch_entry(models[0]), fetch_entry(models[1])
    unused(budget, second)
    fetch_entry(models[2])
    assert first.root.exists()
    with pytest.raises(SourceError, match=r"needs 102.0 kB, but .* has room for 50.0 kB and nothing unused to remove"):
        fetch_entry(models[1])
    assert not list(first.root.parent.parent.rglob("*.part"))


def test_the_size_is_counted_anew_only_where_an_entry_has_come_or_gone(budget: Cache, models: list[str]) -> None:
    first = fetch_entry(models[0])
    os.utime(first.root.parent, (1, 1))
    size = budget.size()
    assert size == first.size > 0
    first.manifest.write_text("not read again")
    assert budget.size() == size
    second = fetch_entry(models[1])
    # A change that leaves the time of the change before.
    now = time.time()
    os.utime(second.root.parent, (now, now))
    assert budget.size() == size + second.size
    second.remove()
    os.utime(second.root.parent, (now, now))
    assert budget.size() == size


def test_abandoned_download_is_removed(budget: Cache, models: list[str], cache_folder: Path) -> None:
    abandoned = cache_folder / "sources/gone/model.part/files"
    abandoned.mkdir(parents=True)
    (abandoned / "w").write_bytes(b"x" * 200_000)
    fetch_entry(models[0])
    assert not abandoned.exists()


def test_disk_too_small(uri: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = module.shutil.disk_usage("/")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(SourceError, match=r"/m needs 306.0 kB, but .* has room for 1.0 kB .* see RAYLLM_CACHE_DIR"):
        fetch_entry(uri)
    assert_nothing_left(cache_folder)
    assert not list(cache_folder.rglob("*.part"))
    monkeypatch.undo()


def test_disk_full_during_download(uri: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(SourceError, match=r"the disk of .* is full; see RAYLLM_CACHE_DIR"):
            fetch_entry(uri)
    assert not list(cache_folder.rglob("*.part"))
    assert contents(fetch_entry(uri).files) == MODEL


def test_cache_not_writable(uri: str, cache_folder: Path) -> None:
    cache_folder.write_text("a file")
    with pytest.raises(SourceError, match=r"cannot be written: Not a directory; see RAYLLM_CACHE_DIR"):
        fetch_entry(uri)


def test_truncated_file_is_not_served(uri: str, s3_proxy: FaultProxy, cache: Cache) -> None:
    entry = fetch_entry(uri)
    os.truncate(entry.files / "w.safetensors", 5)
    assert cache.acquire_latest(uri, "all") is None
    assert contents(fetch_entry(uri).files) == MODEL


@pytest.mark.parametrize("damaged", [False, True])
def test_unsettled_entry_is_verified_after_a_reboot(
    uri: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    monkeypatch.setattr(Entry, "_settle", lambda self: None)
    entry = fetch_entry(uri)
    monkeypatch.setattr(entry_module, "boot_id", lambda: "another")
    if damaged:
        (entry.files / "w.safetensors").write_bytes(bytes(len(WEIGHTS)))
    before = s3_proxy.bytes_sent.total()
    assert contents(fetch_entry(uri).files) == MODEL
    assert (s3_proxy.bytes_sent.total() - before > len(WEIGHTS)) == damaged


def test_verified_entry_is_settled(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "_settle", lambda self: None)
    entry = fetch_entry(uri)
    monkeypatch.setattr(entry_module, "boot_id", lambda: "another")
    fetch_entry(uri)
    assert json.loads((entry.root / "manifest.json").read_text())["settled"]


def test_files_of_an_older_snapshot_are_removed(uri: str, s3: S3Server, s3_proxy: FaultProxy, place: str) -> None:
    s3.put(place, {"m/old/x.json": b"old", "m/y": b"old"})
    s3_proxy.fault("status", "safetensors")
    with pytest.raises(SourceError):
        fetch_entry(uri)
    s3_proxy.clear()
    for key in ("m/old/x.json", "m/y"):
        s3.client().delete_object(Bucket=place, Key=key)
    # A folder becomes a file, and a file a folder.
    s3.put(place, {"m/old": b"new", "m/y/z": b"new"})
    assert contents(fetch_entry(uri).files) == {**MODEL, "old": b"new", "y/z": b"new"}


def test_parts_of_a_removed_file_are_fetched_again(uri: str, s3_proxy: FaultProxy, s3: S3Server) -> None:
    # S3 has no checksum of a multipart upload to detect damage with.
    place = uri.split("/")[2]
    upload = s3.client().create_multipart_upload(Bucket=place, Key="m/parts")["UploadId"]
    at = {"Bucket": place, "Key": "m/parts", "UploadId": upload}
    etag = s3.client().upload_part(**at, PartNumber=1, Body=WEIGHTS)["ETag"]
    s3.client().complete_multipart_upload(**at, MultipartUpload={"Parts": [{"ETag": etag, "PartNumber": 1}]})
    s3_proxy.fault("status", "safetensors", skip=2)
    with pytest.raises(SourceError):
        fetch_entry(uri)
    s3_proxy.clear()
    for path in Path(os.environ["RAYLLM_CACHE_DIR"]).rglob("*.part/files/parts"):
        path.unlink()
    assert (fetch_entry(uri).files / "parts").read_bytes() == WEIGHTS


def test_symlink_in_a_download_is_not_followed(
    uri: str, s3_proxy: FaultProxy, cache_folder: Path, tmp_path: Path
) -> None:
    s3_proxy.fault("status", "safetensors")
    with pytest.raises(SourceError):
        fetch_entry(uri)
    s3_proxy.clear()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    staged = next(cache_folder.rglob("*.part")) / "files/w.safetensors"
    staged.unlink()
    staged.symlink_to(victim)
    assert contents(fetch_entry(uri).files) == MODEL
    assert victim.read_text() == "mine"


def test_more_files_than_the_descriptor_limit(s3: S3Server, s3_proxy: FaultProxy, place: str) -> None:
    s3.put(place, {f"m/{number}": b"" for number in range(60)})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 50, hard))
    try:
        assert len(contents(fetch_entry(f"s3://{place}/m").files)) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_failed_download_leaks_no_descriptor(uri: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.fault("status", "safetensors", value=418)
    with pytest.raises(SourceError):
        fetch_entry(uri)

    def opened() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link)]

    assert [path for path in opened() if os.environ["RAYLLM_CACHE_DIR"] in path] == []


def test_max_size_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLLM_CACHE_MAX_GB", "0.5")
    settings.cache_clear()
    assert node_cache()._max_bytes == 500_000_000
