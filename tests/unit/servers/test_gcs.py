"""The Google Cloud Storage server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest
import urllib3

from tests.servers.gcs import GcsServer, storage

BODY = bytes(range(256)) * 16


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        server.put("weights", {"m/a": BODY})
        yield server


def get(gcs: GcsServer, generation: int, name: str = "m%2Fa", **headers: str) -> urllib3.BaseHTTPResponse:
    """Download an object."""
    url = f"{gcs.url}/download/storage/v1/b/weights/o/{name}?alt=media&generation={generation}"
    return urllib3.request("GET", url, headers=headers, retries=False)


def test_listing(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"file")
    gcs.put("listed", {"m/a": BODY, "m/b/c": tmp_path / "f", "other": b""})
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    blobs = list(storage.Client.create_anonymous_client().list_blobs("listed", prefix="m/"))
    assert [(blob.name, blob.size) for blob in blobs] == [("m/a", len(BODY)), ("m/b/c", 4)]
    assert blobs[0].crc32c == b64encode(google_crc32c.Checksum(BODY).digest()).decode()


def test_objects_and_their_ranges(gcs: GcsServer) -> None:
    generation = gcs.client().bucket("weights").get_blob("m/a").generation
    assert get(gcs, generation).data == BODY
    part = get(gcs, generation, Range="bytes=10-19")
    assert (part.status, part.data, part.headers["content-range"]) == (206, BODY[10:20], f"bytes 10-19/{len(BODY)}")


def test_an_old_generation_is_gone(gcs: GcsServer) -> None:
    gcs.put("weights", {"changing": b"old"})
    old = gcs.client().bucket("weights").get_blob("changing").generation
    gcs.put("weights", {"changing": b"new"})
    assert get(gcs, old, "changing", Range="bytes=0-1").status == 404
    assert get(gcs, gcs.client().bucket("weights").get_blob("changing").generation, "changing").data == b"new"
