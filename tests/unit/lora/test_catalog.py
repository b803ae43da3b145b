"""Catalogs of adapters in folders, in buckets and on the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rayllm.core.errors import SourceError
from rayllm.lora import Adapter, open_catalog, parse_adapter
from rayllm.sources.errors import MissingError
from rayllm.sources.items import Store
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server
from tests.unit.lora.files import adapter as adapter_files
from tests.unit.lora.files import write

Put = Callable[[dict[str, bytes]], str]


@pytest.fixture(params=["folder", "s3", "gs"])
def put(request: pytest.FixtureRequest, tmp_path: Path, place: str) -> Put:
    """Writes files into a catalog and returns its path."""
    if request.param == "folder":
        return lambda files: str(_write(tmp_path / "place", files))
    server: S3Server | GcsServer = request.getfixturevalue("gcs" if request.param == "gs" else "s3")

    def store(files: dict[str, bytes]) -> str:
        server.put(place, {f"some/{name}": content for name, content in files.items()})
        return f"{request.param}://{place}/some"

    return store


def _write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        write((root / name).parent, {Path(name).name: content})
    return root


def adapter_in(folder: str) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in adapter_files().items()}


def candidate_files(path: str, adapter: Adapter) -> list[str]:
    """The files of the first candidate that holds any."""
    for store in open_catalog(path, adapter.base).candidates(adapter):
        if items := files(store):
            return sorted(item for item in items)
    return []


def files(store: Store) -> list[str]:
    try:
        return [item.path for item in store.files()]
    except MissingError:
        return []


BOTH = ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.parametrize("base", ["m", "org/q:7b"])
def test_both_layouts(put: Put, base: str) -> None:
    path = put(
        adapter_in("short")
        | adapter_in(f"{base}:full")
        | adapter_in("other:x")
        | adapter_in("org/other:y")
        | adapter_in("short/checkpoint-1")
        | {"README.md": b"", "no-adapter/config.json": b"{}", "adapter_config.json": b"{}"}
    )
    assert candidate_files(path, Adapter(base, "full")) == BOTH
    assert set(candidate_files(path, Adapter(base, "short"))) >= set(BOTH)
    assert candidate_files(path, Adapter(base, "none")) == []
    assert [str(name) for name in open_catalog(path, base).adapters()] == [f"{base}:full", f"{base}:short"]


def test_full_name_takes_precedence(put: Put) -> None:
    path = put(adapter_in("m:x") | {"x/adapter_config.json": b"{}"})
    assert candidate_files(path, Adapter("m", "x")) == BOTH
    assert [str(name) for name in open_catalog(path, "m").adapters()] == ["m:x"]


def test_name_is_not_a_prefix_match(put: Put) -> None:
    path = put(adapter_in("xy"))
    assert candidate_files(path, Adapter("m", "x")) == []


def test_missing_folder_is_empty(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    assert open_catalog(path, "m").adapters() == []
    assert candidate_files(path, Adapter("m", "x")) == []


def test_links_out_of_the_folder_are_ignored(tmp_path: Path) -> None:
    write(tmp_path / "outside", adapter_files())
    inside = write(tmp_path / "root" / "inside", adapter_files())
    (tmp_path / "root" / "x").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "alias").symlink_to(inside)
    (inside / "passwd").symlink_to("/etc/passwd")
    path = str(tmp_path / "root")
    assert candidate_files(path, Adapter("m", "x")) == []
    assert candidate_files(path, Adapter("m", "inside")) == candidate_files(path, Adapter("m", "alias")) == BOTH
    assert [str(name) for name in open_catalog(path, "m").adapters()] == ["m:alias", "m:inside"]


@pytest.mark.parametrize(
    "name", ["..", "../x", "x/../../y", "/etc", "x\x00", "%2e%2e", "x\\y", "~", ".x", "", "x?y", "x#y", "a:b"]
)
def test_path_traversal_is_no_name(name: str) -> None:
    assert parse_adapter(f"org/a:{name}", ["org/a"]) is None


def test_hub_organisation(hub: HubServer) -> None:
    for repository, labels in {"org/x": ["peft"], "org/y": ["peft", "lora"], "org/model": [], "o/z": ["peft"]}.items():
        hub.commit(repository, adapter_files())
        hub.label(repository, *labels)
    assert candidate_files("hf://org", Adapter("o/base", "x")) == BOTH
    assert candidate_files("hf://org", Adapter("o/base", "none")) == []
    assert [str(name) for name in open_catalog("hf://org/", "o/base").adapters()] == ["o/base:x", "o/base:y"]


@pytest.mark.parametrize("name", ["x@y", "x+y", "a--b", "x-", "x" * 128, "x.git"])
def test_invalid_repository_id_sends_no_request(hub: HubServer, name: str) -> None:
    assert parse_adapter(f"m:{name}", ["m"])
    assert candidate_files("hf://org", Adapter("m", name)) == []
    assert hub.requests == []


@pytest.mark.parametrize("path", ["s3://no-such-bucket-of-ours/x", "gs://no-such-bucket-of-ours/x"])
def test_missing_bucket(s3: S3Server, gcs: GcsServer, path: str) -> None:
    with pytest.raises(SourceError):
        open_catalog(path, "m").adapters()
