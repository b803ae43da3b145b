"""Fetching adapters from real stores through the node's cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rayllm.config import GenerationConfig
from rayllm.core.errors import ModelNotFoundError, RayLLMError, RequestError, UnavailableError
from rayllm.lora import Adapter, AdapterFiles, AdapterStore, open_catalog
from rayllm.sources import DownloadOptions, LoggedProgress, node_cache
from rayllm.sources.transfer import ranges
from tests.servers.faults import FaultProxy
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server
from tests.unit.lora.files import adapter, write

QUICK = DownloadOptions(threads=2, tries=1, deadline_s=5)
X = Adapter("m", "x")


def from_source(source: str) -> Adapter:
    return replace(X, source=source)


@pytest.fixture(autouse=True)
def _own_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_MAX_WAIT_S", 0.01)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place"


def adapters(path: Path | str | None, base: str = "m", max_rank: int = 8, **modules: str) -> AdapterStore:
    catalog = open_catalog(str(path), base) if path else None
    return AdapterStore(base, catalog, modules, QUICK, max_rank, LoggedProgress)


def refused(store: AdapterStore, wanted: Adapter = X) -> RayLLMError:
    with pytest.raises(RayLLMError) as caught:
        store.fetch(wanted)
    return caught.value


def weights(files: AdapterFiles) -> bytes:
    return (files.folder / "adapter_model.safetensors").read_bytes()


def test_only_served_files_are_fetched(s3: S3Server, place: str) -> None:
    more = {
        "rayllm.yaml": b"stopping_sequences: [a]",
        "optimizer.pt": b"o" * 9,
        "README.md": b"r",
        "sub/rayllm.yaml": b"",
    }
    s3.put(place, {f"x/{name}": content for name, content in (adapter() | more).items()})
    files = adapters(f"s3://{place}").fetch(X)
    assert {path.name for path in files.folder.rglob("*")} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "rayllm.yaml",
    }


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_exists_downloads_nothing(s3: S3Server, root: Path, place: str, kind: str, cache_folder: Path) -> None:
    if kind == "folder":
        write(root / "x", adapter())
        (root / "empty").mkdir()
        write(root / "broken", {"adapter_config.json": b"{"})
    else:
        s3.put(place, {f"x/{name}": content for name, content in adapter().items()} | {"broken/a": b"a"})
    store = adapters(root if kind == "folder" else f"s3://{place}", named=str(root / "x"))
    existing = [name for name in ("x", "empty", "broken", "none") if store.exists(Adapter("m", name))]
    assert existing == ["x", "broken"]
    assert kind == "s3" or store.exists(Adapter("m", "named"))
    assert not list(cache_folder.rglob("*.safetensors"))


def test_fetch_from_the_hub(hub: HubServer) -> None:
    hub.commit("org/x", adapter(fill=b"h"))
    assert weights(adapters("hf://org").fetch(X)) == weights(adapters(None, x="org/x").fetch(X))
    assert weights(adapters(None).fetch(from_source("hf://org/x"))) == adapter(fill=b"h")["adapter_model.safetensors"]


@pytest.mark.parametrize("kind", ["folder", "s3", "gs"])
def test_changed_adapter_is_a_new_version_beside_the_old(
    request: pytest.FixtureRequest, kind: str, root: Path, place: str
) -> None:
    def put(fill: bytes) -> None:
        if kind == "folder":
            (root / "new").mkdir(parents=True, exist_ok=True)
            # Replaced by rename, as publishing tools do.
            write(root / "new", adapter(fill=fill))
            for path in (root / "new").iterdir():
                path.rename(write(root / "x", {}) / path.name)
            (root / "new").rmdir()
            return
        server: S3Server | GcsServer = request.getfixturevalue("gcs" if kind == "gs" else "s3")
        server.put(place, {f"x/{name}": content for name, content in adapter(fill=fill).items()})

    put(b"1")
    store = adapters(root if kind == "folder" else f"{kind}://{place}")
    old, same = store.fetch(X), store.fetch(X)
    assert (old.version, old.folder) == (same.version, same.folder)
    put(b"2")
    new = store.fetch(X)
    assert new.version != old.version
    assert weights(old) == adapter(fill=b"1")["adapter_model.safetensors"]
    assert weights(new) == adapter(fill=b"2")["adapter_model.safetensors"]


def test_two_bases_in_one_catalog(root: Path) -> None:
    write(root / "a:x", adapter(fill=b"a"))
    write(root / "b:x", adapter(fill=b"b"))
    write(root / "both", adapter(r=8))
    a, b = adapters(root, "a"), adapters(root, "b", max_rank=4)
    fetched = [store.fetch(Adapter(base, "x")) for base, store in (("a", a), ("b", b))]
    assert [weights(files) for files in fetched] == [
        adapter(fill=fill)["adapter_model.safetensors"] for fill in (b"a", b"b")
    ]
    assert fetched[0].version != fetched[1].version
    assert a.fetch(Adapter("a", "both"))
    # One base accepts what another refuses, although it is cached already.
    assert "`b:both` cannot be used" in refused(b, Adapter("b", "both")).message


def test_cached_adapter_is_served_if_the_store_is_down(
    s3_proxy: FaultProxy, s3: S3Server, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put(place, {f"x/{name}": content for name, content in adapter().items()})
    store = adapters(f"s3://{place}")
    before = store.fetch(X)
    s3_proxy.fault("status", value=500)
    after = store.fetch(X)
    assert (after.version, after.folder) == (before.version, before.folder)
    error = refused(store, Adapter("m", "other"))
    assert isinstance(error, UnavailableError)
    assert (error.code, error.retry_after_s) == ("adapter_unavailable", 10)
    assert place not in error.message
    assert place in caplog.text


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_revoked_credentials_make_the_adapter_unavailable(
    request: pytest.FixtureRequest, kind: str, place: str
) -> None:
    server: S3Server | GcsServer = request.getfixturevalue(kind)
    proxy: FaultProxy = request.getfixturevalue(f"{kind}_proxy")
    server.put(place, {f"x/{name}": content for name, content in adapter().items()})
    store = adapters(f"{'gs' if kind == 'gcs' else 's3'}://{place}")
    store.fetch(X)
    proxy.fault("status", value=403)
    assert isinstance(refused(store), UnavailableError)


def test_cached_adapter_is_served_if_the_hub_is_down(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayllm.sources.stores import hub as client

    hub.commit("org/x", adapter())
    store = adapters("hf://org")
    before = store.fetch(X)
    monkeypatch.setattr(client, "_ATTEMPTS", 1)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert store.fetch(X).version == before.version
    assert isinstance(refused(store, Adapter("m", "y")), UnavailableError)


def test_missing_adapter_error_hides_the_path(root: Path, hub: HubServer) -> None:
    write(root / "empty", {})
    for store in (adapters(root), adapters("hf://org"), adapters(None)):
        for adapter_name in ("x", "empty"):
            error = refused(store, Adapter("m", adapter_name))
            assert isinstance(error, ModelNotFoundError)
            assert error.message == f"The model `m` has no adapter `{adapter_name}`."


def test_removed_adapter_is_not_served_from_the_cache(root: Path) -> None:
    store = adapters(write(root / "x", adapter()).parent)
    store.fetch(X)
    (root / "x").rename(root.parent / "removed")
    assert isinstance(refused(store), ModelNotFoundError)


def test_pickled_weights_are_not_downloaded(root: Path, cache_folder: Path) -> None:
    files = adapter()
    files["adapter_model.bin"] = files.pop("adapter_model.safetensors")
    error = refused(adapters(write(root / "x", files).parent))
    assert isinstance(error, RequestError)
    assert "only pickled weights; save it as safetensors" in error.message
    assert not cache_folder.exists()


def test_safetensors_are_preferred_to_pickled_weights(root: Path) -> None:
    assert adapters(write(root / "x", adapter() | {"adapter_model.bin": b"p"}).parent).fetch(X)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"adapter_config.json": b"{}"}, "adapter_config.json: `r` is no rank"),
        ({"adapter_config.json": json.dumps({"r": 2}).encode()}, "it has no adapter_model.safetensors"),
        ({"README.md": b""}, "it has no adapter_config.json"),
        (adapter() | {"rayllm.yaml": b"[1]"}, "rayllm.yaml: must be a mapping"),
        (adapter() | {"rayllm.yaml": b"a: ["}, "rayllm.yaml"),
        (adapter() | {"rayllm.yaml": b"stoping_sequences: [a]"}, "rayllm.yaml: stoping_sequences"),
        (adapter() | {"rayllm.yaml": b"generate_kwargs: {model: x}"}, "`model` belongs to each request"),
    ],
)
def test_broken_file_is_named_and_released(
    root: Path, files: dict[str, bytes], message: str, cache_folder: Path
) -> None:
    error = refused(adapters(write(root / "x", files).parent))
    assert (error.status, error.code) == (400, "adapter_broken")
    assert message in error.message
    assert str(root.parent) not in error.message
    assert node_cache()._descriptors == {}


def test_settings_are_read(root: Path) -> None:
    settings = b"stopping_sequences: [END]\ngenerate_kwargs: {temperature: 0.5}"
    store = adapters(write(root / "x", adapter() | {"rayllm.yaml": settings}).parent)
    expected = GenerationConfig(stopping_sequences=("END",), generate_kwargs={"temperature": 0.5})
    assert store.fetch(X).generation == expected
    (root / "x" / "rayllm.yaml").unlink()
    assert store.fetch(X).generation is None


def test_precedence_of_paths(root: Path) -> None:
    for name in ("x", "named", "loaded"):
        write(root / name, adapter(fill=name[:1].encode()))
    store = adapters(root, x=str(root / "named"))
    assert weights(store.fetch(X))[-1:] == b"n"
    assert weights(store.fetch(from_source(str(root / "loaded"))))[-1:] == b"l"
    assert isinstance(refused(store, from_source(str(root / "none"))), ModelNotFoundError)


@pytest.mark.parametrize("path", ["s3://", "a/b/c", "http://x/y", "x y", "file:///x", "/x\0", "hf://"])
def test_invalid_path_is_refused(hub: HubServer, path: str) -> None:
    error = refused(adapters(None), from_source(path))
    assert (error.status, error.param) == (400, "model")
    assert "is no folder, no address of a bucket and no repository of the hub" in error.message
    assert hub.requests == []


def test_another_version_is_refused(s3: S3Server, place: str) -> None:
    s3.put(place, {f"x/{name}": content for name, content in adapter().items()})
    store = adapters(f"s3://{place}")
    version = store.fetch(X).version
    store.fetch_version(X, version)
    s3.put(place, {f"x/{name}": content for name, content in adapter(fill=b"n").items()})
    with pytest.raises(UnavailableError, match="cannot be fetched now"):
        store.fetch_version(X, version)
