"""Fetching a model from every kind of source."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.config import BucketSource, ExtraFile, HubSource, LocalSource, Source
from rayllm.core.errors import ConfigError, SourceError
from rayllm.sources import UnreachableError, Version, fetch, find_weights
from rayllm.sources.stores import BucketStore
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server

MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"[1]",
    "a.safetensors": b"a" * 100_000,
    "b.safetensors": b"b" * 50_000,
    "model.safetensors.index.json": b'{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}',
    "chat_template.jinja": b"x",
}
# The same weights in Mistral's own format.
MISTRAL = {
    "params.json": b"{}",
    "tekken.json": b"{}",
    "consolidated-1.safetensors": b"c",
    "consolidated.safetensors.index.json": b'{"weight_map": {"x": "consolidated-1.safetensors"}}',
}
LOADS_MISTRAL = {"load_format": "mistral"}
UNWANTED = {"pytorch_model.bin": b"p", "original/c.safetensors": b"o", "README.md": b"r", "model.gguf": b"g"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_local_folder_is_used_in_place(tmp_path: Path) -> None:
    for name in ("config.json", "b.safetensors", "a.safetensors"):
        (tmp_path / name).touch()
    assert fetch(LocalSource(path=str(tmp_path)), "m").folder == tmp_path
    assert [path.name for path in find_weights(tmp_path, False, "m")] == ["a.safetensors", "b.safetensors"]


def test_missing_local_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"model `m`: model_source .*none is not a folder on this node"):
        fetch(LocalSource(path=str(tmp_path / "none")), "m")


def test_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    assert fetch(LocalSource(path=str(tmp_path)), "m", weights=False).folder == tmp_path
    with pytest.raises(ConfigError):
        fetch(LocalSource(path=str(tmp_path)), "m")


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> tuple[str, S3Server | GcsServer]:
    server = request.getfixturevalue("gcs" if request.param == "gs" else "s3")
    return f"{request.param}://bucket-{abs(hash(request.node.name)) % 10**8}", server


def put(bucket: tuple[str, S3Server | GcsServer], objects: dict[str, bytes]) -> None:
    bucket[1].put(bucket[0].split("//")[1], objects)


def test_fetch_downloads_only_files_needed_for_serving(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, {f"some/model/{name}": content for name, content in (MODEL | UNWANTED | {"dir/": b""}).items()})
    put(bucket, {"some/model-2/config.json": b"another"})
    fetched = fetch(BucketSource(bucket_uri=f"{bucket[0]}/some/model/"), "m")
    assert contents(fetched.folder) == MODEL
    assert fetched.version.snapshot
    assert fetch(BucketSource(bucket_uri=f"{bucket[0]}/some/model"), "m") == fetched


def weights_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_each_format_has_a_snapshot_of_its_own(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, MODEL | MISTRAL)
    source = BucketSource(bucket_uri=bucket[0])
    usual, mistral = fetch(source, "m"), fetch(source, "m", arguments=LOADS_MISTRAL)
    assert weights_of(usual.folder) == ["a.safetensors", "b.safetensors"]
    assert contents(mistral.folder) == MISTRAL | {
        name: MODEL[name] for name in ("config.json", "tokenizer.json", "chat_template.jinja")
    }
    assert usual.version != mistral.version
    assert fetch(source, "m", pinned=mistral.version, arguments=LOADS_MISTRAL) == mistral
    with pytest.raises(SourceError, match="changed since"):
        fetch(source, "m", pinned=Version(mistral.version.snapshot[::-1]), arguments=LOADS_MISTRAL)


def test_without_the_store_each_format_finds_its_own_copy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("formats", MODEL | MISTRAL)
    source = BucketSource(bucket_uri="s3://formats")
    usual, mistral = fetch(source, "m"), fetch(source, "m", arguments=LOADS_MISTRAL)

    def unreachable(*_: object) -> None:
        raise UnreachableError("s3://formats cannot be reached")

    monkeypatch.setattr(BucketStore, "files", unreachable)
    assert fetch(source, "m") == usual
    assert fetch(source, "m", arguments=LOADS_MISTRAL) == mistral
    with pytest.raises(SourceError, match="no complete copy"):
        fetch(source, "m", arguments={"config_format": "mistral"})


def test_the_hub_s_weights_in_mistral_s_format(hub: HubServer) -> None:
    hub.commit("org/twice", MODEL | MISTRAL)
    source = HubSource(repo_id="org/twice")
    assert weights_of(fetch(source, "m").folder) == ["a.safetensors", "b.safetensors"]
    assert weights_of(fetch(source, "m", arguments=LOADS_MISTRAL).folder) == ["consolidated-1.safetensors"]


def test_a_source_without_the_format_that_is_loaded(bucket: tuple[str, S3Server | GcsServer], tmp_path: Path) -> None:
    put(bucket, MODEL)
    (tmp_path / "config.json").touch()
    (tmp_path / "a.safetensors").touch()
    for source in (BucketSource(bucket_uri=bucket[0]), LocalSource(path=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"model `m`: .* holds no consolidated\*\.safetensors file"):
            fetch(source, "m", arguments=LOADS_MISTRAL)


def test_tokenizer_in_a_bucket(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, MODEL)
    files = contents(fetch(BucketSource(bucket_uri=bucket[0]), "m", weights=False).folder)
    assert files == {name: content for name, content in MODEL.items() if not name.endswith(".safetensors")}


def test_changed_bucket_is_another_version(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, MODEL)
    source = BucketSource(bucket_uri=bucket[0])
    old = fetch(source, "m")
    put(bucket, {"tokenizer.json": b"[2]"})
    new = fetch(source, "m")
    assert new.version != old.version
    assert (new.folder / "tokenizer.json").read_bytes() == b"[2]"
    # A replica pinned to the old version gets it from the cache, or an error.
    assert fetch(source, "m", pinned=old.version) == old
    with pytest.raises(SourceError, match="changed since the running replicas loaded it"):
        fetch(source, "m", pinned=Version("0" * 24))


def test_pickled_weights_only_if_allowed(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, {"p/config.json": b"{}", "p/pytorch_model.bin": b"p"})
    source = BucketSource(bucket_uri=f"{bucket[0]}/p")
    with pytest.raises(ConfigError, match=r"model `m`: .*/p holds only pickled weights .pytorch_model.bin"):
        fetch(source, "m")
    assert "pytorch_model.bin" in contents(fetch(source, "m", allow_pickle=True).folder)


def test_extra_files_inside_and_outside_the_model(bucket: tuple[str, S3Server | GcsServer], tmp_path: Path) -> None:
    uri = bucket[0]
    put(bucket, {**MODEL, "more/x.jinja": b"x", "more/deep/y.jinja": b"y", "one.txt": b"1"})
    extras = (
        ExtraFile(bucket_uri=f"{uri}/one.txt", destination_path="tokenizer.json"),
        ExtraFile(bucket_uri=f"{uri}/more", destination_path="templates"),
        ExtraFile(bucket_uri=f"{uri}/one.txt", destination_path=str(tmp_path / "alone.txt")),
        ExtraFile(bucket_uri=f"{uri}/more/", destination_path=str(tmp_path / "all")),
    )
    files = contents(fetch(BucketSource(bucket_uri=uri, extra_files=extras), "m").folder)
    assert files["tokenizer.json"] == b"1"
    assert (tmp_path / "alone.txt").read_bytes() == b"1"
    assert contents(tmp_path / "all") == {"x.jinja": b"x", "deep/y.jinja": b"y"}
    assert files["templates/deep/y.jinja"] == b"y"


def test_incomplete_upload_is_refused(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, {name: content for name, content in MODEL.items() if name != "b.safetensors"})
    source = BucketSource(bucket_uri=bucket[0])
    with pytest.raises(ConfigError, match=r"model `m`: .* is not complete: .*index\.json names b\.safetensors"):
        fetch(source, "m")
    put(bucket, {"b.safetensors": b"b"})
    assert "b.safetensors" in contents(fetch(source, "m").folder)


@pytest.mark.parametrize("index", [b"", b"[]", b'{"weight_map": 1}'])
def test_invalid_index(tmp_path: Path, index: bytes) -> None:
    for name, content in (MODEL | {"model.safetensors.index.json": index}).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match="is not an index of weights"):
        find_weights(tmp_path, False, "m")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://no-such-bucket-here/x", "there is no bucket `no-such-bucket-here`"),
        ("gs://no-such-bucket-here/x", "there is no bucket `no-such-bucket-here`"),
    ],
)
def test_missing_bucket(s3: S3Server, gcs: GcsServer, uri: str, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        fetch(BucketSource(bucket_uri=uri), "m")
    assert caught.value.message.startswith("model `m`: ")
    assert message in caught.value.message


def test_empty_source(bucket: tuple[str, S3Server | GcsServer]) -> None:
    put(bucket, {"a": b""})
    with pytest.raises(SourceError, match="holds nothing; check the address"):
        fetch(BucketSource(bucket_uri=f"{bucket[0]}/nowhere"), "m")


@pytest.mark.parametrize("key", ["../x.safetensors", "a/../../x.json", "/x.json", "a\\b.json"])
def test_object_names_that_escape_the_folder(s3: S3Server, key: str) -> None:
    s3.put("traps", {"m/config.json": b"{}", "m/a.safetensors": b"", f"m/{key}": b"!"})
    source: Source = BucketSource(bucket_uri="s3://traps/m")
    with pytest.raises(SourceError, match="which is not a path inside a folder"):
        fetch(source, "m")
    s3.client().delete_object(Bucket="traps", Key=f"m/{key}")
