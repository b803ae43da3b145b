"""The benchmark of downloads: its server speaks as the stores do, and a client that brings rubbish cannot win."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.object_server import Object, Reply, Request, answer, read
from benchmarks.pull import has_files, make_weights

CONTENT = b"0123456789"


@pytest.fixture
def objects(tmp_path: Path) -> dict[str, Object]:
    for name in ("a b&c", "d", "e"):
        (tmp_path / name).write_bytes(CONTENT)
    return read(tmp_path)


def ask(objects: dict[str, Object], path: str, query: Mapping[str, str] | None = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer(Request("GET", path, query or {}, {"host": "here", **named}), objects)


def test_s3_lists_in_pages(objects: dict[str, Object]) -> None:
    names, token = [], ""
    while True:
        query = {"list-type": "2", "max-keys": "2"} | ({"continuation-token": token} if token else {})
        page = ElementTree.fromstring(ask(objects, "/weights", query).text)
        names += [key.text for key in page.findall(".//{*}Key")]
        if not (token := page.findtext("{*}NextContinuationToken") or ""):
            break
    assert names == ["a b&c", "d", "e"]


def test_s3_says_the_checksum_of_the_whole_only(objects: dict[str, Object]) -> None:
    whole = ask(objects, "/weights/d", x_amz_checksum_mode="ENABLED")
    part = ask(objects, "/weights/d", x_amz_checksum_mode="ENABLED", range="bytes=2-4")
    plain = ask(objects, "/no-crc/d", x_amz_checksum_mode="ENABLED")
    assert whole.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert "x-amz-checksum-crc64nvme" not in part.headers | plain.headers
    assert whole.headers["ETag"] == f'"{hashlib.md5(CONTENT).hexdigest()}"'


def test_ranges_and_conditions(objects: dict[str, Object]) -> None:
    part = ask(objects, "/weights/a%20b%26c", range="bytes=8-99")
    assert (part.status, part.start, part.end) == (206, 8, 10)
    assert part.headers["Content-Range"] == "bytes 8-9/10"
    assert ask(objects, "/weights/d", range="bytes=10-11").status == 416
    assert ask(objects, "/weights/d", if_match='"other"').status == 412
    assert ask(objects, "/weights/none").status == 404


def test_gcs_describes_and_sends(objects: dict[str, Object]) -> None:
    listed = json.loads(ask(objects, "/storage/v1/b/weights/o", {"prefix": "a"}).text)["items"]
    assert [(item["name"], item["size"]) for item in listed] == [("a b&c", "10")]
    media = "/download/storage/v1/b/weights/o/a%20b%26c"
    whole = ask(objects, media, {"alt": "media", "generation": listed[0]["generation"]})
    assert whole.headers["X-Goog-Hash"] == f"crc32c={listed[0]['crc32c']},md5={listed[0]['md5Hash']}"
    assert base64.b64decode(listed[0]["md5Hash"]) == hashlib.md5(CONTENT).digest()
    assert ask(objects, media, {"alt": "media", "generation": "1"}).status == 404


def test_a_result_is_looked_into(tmp_path: Path) -> None:
    weights = make_weights(tmp_path, 1000, 3)
    has_files(tmp_path, weights)
    sample = tmp_path / weights.sample
    sample.write_bytes(bytes(weights.sizes[weights.sample]))
    with pytest.raises(RuntimeError, match="damaged"):
        has_files(tmp_path, weights)
    sample.unlink()
    with pytest.raises(RuntimeError, match="holds"):
        has_files(tmp_path, weights)
