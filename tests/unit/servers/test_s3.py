"""The S3 server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import urllib3

from tests.servers.s3 import S3Server

BODY = bytes(range(256)) * 16


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.put("weights", {"m/a": BODY})
        yield server


def get(s3: S3Server, key: str = "m/a", **headers: str) -> urllib3.BaseHTTPResponse:
    """Get an object as who knows its presigned URL."""
    url = s3.client().generate_presigned_url("get_object", Params={"Bucket": "weights", "Key": key})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib3.request("GET", url, headers=named, retries=False)


def test_objects_and_their_ranges(s3: S3Server) -> None:
    assert get(s3).data == BODY
    part = get(s3, range="bytes=10-19")
    assert (part.status, part.data, part.headers["content-range"]) == (206, BODY[10:20], f"bytes 10-19/{len(BODY)}")
    assert get(s3, range=f"bytes={len(BODY)}-").status == 416


def test_files_are_put_too(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"file")
    s3.put("weights", {"a b+c/ü": tmp_path / "f"})
    assert get(s3, "a b+c/ü").data == b"file"


def test_another_object_is_noticed(s3: S3Server) -> None:
    s3.put("weights", {"changing": b"old"})
    etag = get(s3, "changing").headers["etag"]
    assert get(s3, "changing", if_match=etag).status == 200
    s3.put("weights", {"changing": b"new"})
    assert get(s3, "changing", if_match=etag, range="bytes=0-1").status == 412


def test_listing_in_pages(s3: S3Server) -> None:
    s3.put("many", {f"k/{number}": b"" for number in range(5)})
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket="many", PaginationConfig={"PageSize": 2})
    assert [[item["Key"] for item in page["Contents"]] for page in pages] == [["k/0", "k/1"], ["k/2", "k/3"], ["k/4"]]


@pytest.mark.parametrize("algorithm", ["CRC64NVME", "CRC32C", "SHA256"])
def test_checksums(s3: S3Server, algorithm: str) -> None:
    s3.put("weights", {algorithm: BODY}, ChecksumAlgorithm=algorithm)
    head = s3.client().head_object(Bucket="weights", Key=algorithm, ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"]
    if algorithm == "SHA256":
        assert head["ChecksumSHA256"] == b64encode(sha256(BODY).digest()).decode()
    assert "ChecksumSHA256" not in s3.client().head_object(Bucket="weights", Key=algorithm)


def test_who_signs_nothing_is_refused(s3: S3Server) -> None:
    assert urllib3.request("GET", f"{s3.url}/weights/m/a", retries=False).status == 403
