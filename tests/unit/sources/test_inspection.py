"""Inspecting a model without downloading it, from every kind of source."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from rayllm.config import BucketSource, HubSource, LocalSource
from rayllm.core.errors import ConfigError, SourceError
from rayllm.sources import fetch
from rayllm.sources.inspection import ModelInfo, inspect_model
from rayllm.sources.safetensors import FIRST_READ
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server


def weights(names: list[str], filling: int) -> bytes:
    """A safetensors file with `filling` bytes of data."""
    size = filling // len(names)
    header = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(names)
    }
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(filling)


# The header of the second file is longer than the first read.
MANY = [f"model.layers.{number}.a_rather_long_name_of_a_weight" for number in range(2000)]
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b'{"eos_token_id": 2}',
    "a.safetensors": weights(["x"], 2_000_000),
    "b.safetensors": weights(MANY, 2000),
    "README.md": b"r",
}


def check(info: ModelInfo) -> None:
    assert info.config == {"model_type": "llama"}
    assert set(info.tensors) == {"x", *MANY}
    assert info.tensors["x"].shape == (2_000_000,)


def test_local_folder(tmp_path: Path) -> None:
    for name, content in MODEL.items():
        (tmp_path / name).write_bytes(content)
    check(inspect_model(LocalSource(path=str(tmp_path))))


@pytest.mark.parametrize("uri", ["s3://inspected-before", "org/before"])
def test_without_a_network_a_copy_on_this_node_is_inspected(
    uri: str, s3: S3Server, hub: HubServer, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("inspected-before", MODEL)
    hub.commit("org/before", MODEL)
    source = BucketSource(bucket_uri=uri) if "://" in uri else HubSource(repo_id=uri)
    fetch(source, "m")
    monkeypatch.setattr("rayllm.sources.buckets.s3._ATTEMPTS", 1)
    monkeypatch.setattr("rayllm.sources.stores.hub._ATTEMPTS", 1)
    for name in ("AWS_ENDPOINT_URL_S3", "HF_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    check(inspect_model(source))


def test_s3_bucket(s3: S3Server) -> None:
    s3.put("inspected", MODEL)
    check(inspect_model(BucketSource(bucket_uri="s3://inspected")))


def test_gcs_bucket(gcs: GcsServer) -> None:
    gcs.put("inspected", MODEL)
    check(inspect_model(BucketSource(bucket_uri="gs://inspected")))


def test_hub_repository(hub: HubServer) -> None:
    hub.commit("org/model", MODEL)
    check(inspect_model(HubSource(repo_id="org/model")))
    read = [seen.headers["range"] for seen in [*hub.requests, *hub.cdn_requests] if "range" in seen.headers]
    # Only the headers of the weights are read.
    assert read.count(f"bytes=0-{FIRST_READ - 1}") == 2
    assert len(read) == 4


PARAMS = b'{"dim": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 32}'
MISTRAL = {"params.json": PARAMS, "consolidated.safetensors": weights(["tok_embeddings.weight"], 100)}


def test_mistral_s_own_format_is_read_instead(s3: S3Server) -> None:
    s3.put("twice", MODEL | MISTRAL)
    source = BucketSource(bucket_uri="s3://twice")
    check(inspect_model(source))
    info = inspect_model(source, arguments={"load_format": "mistral"})
    assert set(info.tensors) == {"model.embed_tokens.weight"}
    assert (info.config["model_type"], info.config["hidden_size"]) == ("mistral", 64)


def test_mistral_s_own_format_of_a_folder(tmp_path: Path) -> None:
    for name, content in (MODEL | MISTRAL).items():
        (tmp_path / name).write_bytes(content)
    source = LocalSource(path=str(tmp_path))
    check(inspect_model(source, arguments={"load_format": "safetensors"}))
    assert set(inspect_model(source).tensors) == {"model.embed_tokens.weight"}
    (tmp_path / "config.json").unlink()
    assert inspect_model(source).config["hidden_size"] == 64
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        inspect_model(source, arguments={"config_format": "hf"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config.json": None}, "holds no config.json"),
        ({"config.json": b"["}, "config.json is not JSON"),
        ({"config.json": b"[]"}, "config.json is not a JSON object"),
        ({"a.safetensors": b"12345678"}, "a.safetensors cannot be used: it is truncated or no safetensors file"),
        ({"a.safetensors": b""}, "a.safetensors cannot be used: it is truncated or no safetensors file"),
        ({"a.safetensors": struct.pack("<Q", 5) + b"hello"}, "a.safetensors cannot be used: its header is broken"),
        ({"a.safetensors": None, "b.safetensors": None}, "no \\*.safetensors file"),
    ],
)
def test_invalid_model(tmp_path: Path, changes: dict[str, bytes | None], message: str) -> None:
    for name, content in {**MODEL, **changes}.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigError, SourceError), match=message):
        inspect_model(LocalSource(path=str(tmp_path)))


def test_missing_or_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none is not a folder"):
        inspect_model(LocalSource(path=str(tmp_path / "none")))
    with pytest.raises(SourceError, match="holds nothing"):
        inspect_model(LocalSource(path=str(tmp_path)))
