"""Where adapters lie, and which there are: the same in a folder, in buckets and on the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rayllm.errors import SourceError
from rayllm.lora import AdapterName, open_catalog, parse_name
from rayllm.sources.errors import MissingError
from rayllm.sources.stores.store import Store
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server
from tests.unit.lora.files import adapter, write

Put = Callable[[dict[str, bytes]], str]


@pytest.fixture(params=["folder", "s3", "gs"])
def put(request: pytest.FixtureRequest, tmp_path: Path, place: str) -> Put:
    """Puts files into a place, whose address it gives."""
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


def below(folder: str) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in adapter().items()}


def found(path: str, name: AdapterName) -> list[str]:
    """The files of the first candidate that holds any."""
    for store in open_catalog(path, name.base).candidates(name):
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
def test_both_layouts_are_found_and_listed(put: Put, base: str) -> None:
    path = put(
        below("short")
        | below(f"{base}:full")
        | below("other:x")
        | below("org/other:y")
        | below("short/checkpoint-1")
        | {"README.md": b"", "no-adapter/config.json": b"{}", "adapter_config.json": b"{}"}
    )
    assert found(path, AdapterName(base, "full")) == BOTH
    assert set(found(path, AdapterName(base, "short"))) >= set(BOTH)
    assert found(path, AdapterName(base, "none")) == []
    assert [str(name) for name in open_catalog(path, base).names()] == [f"{base}:full", f"{base}:short"]


def test_what_is_said_in_full_counts_first(put: Put) -> None:
    path = put(below("m:x") | {"x/adapter_config.json": b"{}"})
    assert found(path, AdapterName("m", "x")) == BOTH
    assert [str(name) for name in open_catalog(path, "m").names()] == ["m:x"]


def test_one_name_is_no_beginning_of_another(put: Put) -> None:
    path = put(below("xy"))
    assert found(path, AdapterName("m", "x")) == []


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "none")
    assert open_catalog(path, "m").names() == []
    assert found(path, AdapterName("m", "x")) == []


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "outside", adapter())
    inside = write(tmp_path / "root" / "inside", adapter())
    (tmp_path / "root" / "x").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "alias").symlink_to(inside)
    (inside / "passwd").symlink_to("/etc/passwd")
    path = str(tmp_path / "root")
    assert found(path, AdapterName("m", "x")) == []
    assert found(path, AdapterName("m", "inside")) == found(path, AdapterName("m", "alias")) == BOTH
    assert [str(name) for name in open_catalog(path, "m").names()] == ["m:alias", "m:inside"]


@pytest.mark.parametrize(
    "name", ["..", "../x", "x/../../y", "/etc", "x\x00", "%2e%2e", "x\\y", "~", ".x", "", "x?y", "x#y", "a:b"]
)
def test_names_that_would_lead_elsewhere_are_no_names(name: str) -> None:
    assert parse_name(f"org/a:{name}", ["org/a"]) is None


def test_an_organisations_repositories_are_its_adapters(hub: HubServer) -> None:
    for repository, labels in {"org/x": ["peft"], "org/y": ["peft", "lora"], "org/model": [], "o/z": ["peft"]}.items():
        hub.commit(repository, adapter())
        hub.label(repository, *labels)
    assert found("hf://org", AdapterName("o/base", "x")) == BOTH
    assert found("hf://org", AdapterName("o/base", "none")) == []
    assert [str(name) for name in open_catalog("hf://org/", "o/base").names()] == ["o/base:x", "o/base:y"]


@pytest.mark.parametrize("name", ["x@y", "x+y", "a--b", "x-", "x" * 128, "x.git"])
def test_what_cannot_be_a_repository_is_none_and_the_hub_is_not_asked(hub: HubServer, name: str) -> None:
    assert parse_name(f"m:{name}", ["m"])
    assert found("hf://org", AdapterName("m", name)) == []
    assert hub.requests == []


@pytest.mark.parametrize("path", ["s3://no-such-bucket-of-ours/x", "gs://no-such-bucket-of-ours/x"])
def test_a_place_that_is_not_there_cannot_be_listed(s3: S3Server, gcs: GcsServer, path: str) -> None:
    with pytest.raises(SourceError):
        open_catalog(path, "m").names()
