"""What is told of a model without fetching it, from every kind of place."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from rayllm.config import BucketSource, HubSource, LocalSource
from rayllm.errors import ConfigError, SourceError
from rayllm.sources.inspection import ModelInfo, inspect_model
from rayllm.sources.safetensors import FIRST_READ
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server


def weights(names: list[str], filling: int) -> bytes:
    """A safetensors file."""
    size = filling // len(names)
    header = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(names)
    }
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(filling)


# The header of the second file is longer than what is read of it first.
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


def test_a_folder(tmp_path: Path) -> None:
    for name, content in MODEL.items():
        (tmp_path / name).write_bytes(content)
    check(inspect_model(LocalSource(path=str(tmp_path))))


def test_a_bucket_of_s3(s3: S3Server) -> None:
    s3.put("inspected", MODEL)
    check(inspect_model(BucketSource(bucket_uri="s3://inspected")))


def test_a_bucket_of_google(gcs: GcsServer) -> None:
    gcs.put("inspected", MODEL)
    check(inspect_model(BucketSource(bucket_uri="gs://inspected")))


def test_the_hub(hub: HubServer) -> None:
    hub.commit("org/model", MODEL)
    check(inspect_model(HubSource(repo_id="org/model")))
    read = [seen.headers["range"] for seen in [*hub.requests, *hub.cdn_requests] if "range" in seen.headers]
    # Of the weights the headers alone.
    assert read.count(f"bytes=0-{FIRST_READ - 1}") == 2
    assert len(read) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config.json": None}, "holds no config.json"),
        ({"config.json": b"["}, "config.json is no JSON"),
        ({"config.json": b"[]"}, "config.json holds no JSON object"),
        ({"a.safetensors": b"12345678"}, "a.safetensors cannot be used: it is truncated or no safetensors file"),
        ({"a.safetensors": b""}, "a.safetensors cannot be used: it is truncated or no safetensors file"),
        ({"a.safetensors": struct.pack("<Q", 5) + b"hello"}, "a.safetensors cannot be used: its header is broken"),
        ({"a.safetensors": None, "b.safetensors": None}, "no \\*.safetensors file"),
    ],
)
def test_what_is_no_model(tmp_path: Path, changes: dict[str, bytes | None], said: str) -> None:
    for name, content in {**MODEL, **changes}.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigError, SourceError), match=said):
        inspect_model(LocalSource(path=str(tmp_path)))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none is no folder"):
        inspect_model(LocalSource(path=str(tmp_path / "none")))
    with pytest.raises(SourceError, match="holds nothing"):
        inspect_model(LocalSource(path=str(tmp_path)))
