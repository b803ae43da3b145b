"""Downloads with faults of network and store: they succeed after retries, or fail clearly and leave nothing behind."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import BucketSource
from rayllm.core.errors import SourceError
from rayllm.sources import fetch
from rayllm.sources.transfer import ranges
from tests.servers.faults import FaultProxy
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server
from tests.unit.sources.downloads import MODEL, OTHER, WEIGHTS, assert_nothing_left, contents, fetch_entry

FILE = r"w\.safetensors"
Server = S3Server | GcsServer


@pytest.fixture
def uri(s3_proxy: FaultProxy, s3: S3Server, place: str) -> str:
    """URI of a model in a bucket behind the proxy."""
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"s3://{place}/m"


@pytest.fixture
def gs_uri(gcs_proxy: FaultProxy, gcs: GcsServer, place: str) -> str:
    gcs.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"gs://{place}/m"


def fetched_contents(uri: str) -> dict[str, bytes]:
    return contents(fetch(BucketSource(bucket_uri=uri), "m").folder)


def weight_bytes_sent(proxy: FaultProxy) -> int:
    return sum(count for path, count in proxy.bytes_sent.items() if re.search(FILE, path))


PASSING: list[dict[str, Any]] = [
    {"kind": "status", "value": 500, "times": 2},
    {"kind": "status", "value": 503, "times": 2},
    {"kind": "status", "value": 429, "times": 1},
    {"kind": "reset", "times": 2, "after_bytes": 40_000},
    {"kind": "truncate", "times": 3, "after_bytes": 40_000},
    {"kind": "redirect", "times": 1},
    # A URL may expire before it is used.
    {"kind": "status", "value": 403, "times": 1},
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault['kind']}-{fault.get('value', '')}")
def test_transient_faults_are_retried(s3_proxy: FaultProxy, uri: str, fault: dict[str, Any]) -> None:
    s3_proxy.fault(path=FILE, **fault)
    assert fetched_contents(uri) == MODEL
    # A reset discards what the client has not read yet; nothing else is sent twice.
    assert weight_bytes_sent(s3_proxy) <= len(WEIGHTS) * 1.3


def test_interrupted_part_resumes_after_the_last_byte(s3_proxy: FaultProxy, uri: str) -> None:
    # Less than the shortest part, whichever part is requested first.
    s3_proxy.fault("truncate", FILE, times=1, after_bytes=30_000)
    fetched_contents(uri)
    assert weight_bytes_sent(s3_proxy) == len(WEIGHTS)
    starts = [int(seen.range.split("=")[1].split("-")[0]) for seen in s3_proxy.requests if seen.range]
    assert any(start % 65536 == 30_000 for start in starts)


def test_server_without_range_support(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("ignore_range", FILE)
    assert fetched_contents(uri) == MODEL


def test_damaged_file_is_fetched_again(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("flip", FILE, times=1, after_bytes=5)
    assert fetched_contents(uri) == MODEL
    assert weight_bytes_sent(s3_proxy) == 2 * len(WEIGHTS)


def test_stalled_request_is_retried(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("stall", FILE, value=30, times=1, after_bytes=1000)
    assert contents(fetch_entry(uri, stall_s=0.5).files) == MODEL


FAILING: list[tuple[dict[str, Any], dict[str, float], str]] = [
    ({"kind": "status", "value": 500}, {}, r"w\.safetensors could not be fetched in 2 tries: the server answered 500"),
    ({"kind": "status", "value": 403}, {}, r"w\.safetensors may not be read with these credentials \(HTTP 403\)"),
    ({"kind": "status", "value": 418}, {}, r"w\.safetensors could not be fetched: the server answered 418"),
    ({"kind": "flip", "after_bytes": 5}, {}, r"w\.safetensors is damaged: its (crc32|md5) is .* twice in a row"),
    ({"kind": "truncate"}, {}, r"w\.safetensors could not be fetched in 2 tries: the connection"),
    ({"kind": "stall"}, {"stall_s": 0.3}, r"w\.safetensors could not .* 2 tries: the server sent nothing for too long"),
    ({"kind": "drip", "value": 20_000}, {"deadline_s": 1.5}, r"s3://.*/m was not fetched within 1\.5 s"),
]


@pytest.mark.parametrize(("fault", "options", "message"), FAILING, ids=lambda value: str(value)[:40])
def test_permanent_faults_raise_and_leave_nothing_behind(
    s3_proxy: FaultProxy,
    uri: str,
    cache_folder: Path,
    fault: dict[str, Any],
    options: dict[str, float],
    message: str,
) -> None:
    s3_proxy.fault(path=FILE, **fault)
    with pytest.raises(SourceError, match=message) as caught:
        fetch_entry(uri, **options)
    assert "Signature" not in caught.value.message
    assert_nothing_left(cache_folder)
    assert len([seen for seen in s3_proxy.requests if seen.range]) <= 16
    s3_proxy.clear()
    assert contents(fetch_entry(uri).files) == MODEL


def test_deadline_ends_backoff(s3_proxy: FaultProxy, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_backoff_s", lambda failures: 60.0)
    s3_proxy.fault("status", FILE)
    with pytest.raises(SourceError, match="was not fetched within 1 s"):
        fetch_entry(uri, deadline_s=1, tries=9)


def test_failure_ends_backoff_of_other_parts(
    s3_proxy: FaultProxy, uri: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_backoff_s", lambda failures: 60.0)
    s3_proxy.fault("status", FILE, times=2)
    s3_proxy.fault("status", FILE, value=418)
    with pytest.raises(SourceError, match="418"):
        fetch_entry(uri, tries=9)


@pytest.mark.parametrize(("status", "message"), [(500, "answers 500"), (403, "access denied .*check the credentials")])
def test_listing_fails(
    s3_proxy: FaultProxy, uri: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr("rayllm.sources.buckets.s3._ATTEMPTS", 2)
    s3_proxy.fault("status", "list-type", value=status)
    with pytest.raises(SourceError, match=message):
        fetch(BucketSource(bucket_uri=uri), "m")
    # Denied requests are not retried.
    assert len(s3_proxy.requests) == (1 if status == 403 else 2)
    assert_nothing_left(cache_folder)
    s3_proxy.clear()
    assert fetched_contents(uri) == MODEL


def test_failing_head_requests_are_bounded(s3_proxy: FaultProxy, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.sources.buckets.s3._ATTEMPTS", 2)
    s3_proxy.fault("status", method="HEAD")
    with pytest.raises(SourceError, match="answers 500"):
        fetch_entry(uri)
    # Two attempts for each of two files, plus requests already in flight.
    assert len([seen for seen in s3_proxy.requests if seen.method == "HEAD"]) <= 12


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_object_replaced_during_download_is_not_mixed(kind: str, request: pytest.FixtureRequest, place: str) -> None:
    proxy: FaultProxy = request.getfixturevalue("s3_proxy" if kind == "s3" else "gcs_proxy")
    server: Server = request.getfixturevalue("s3" if kind == "s3" else "gcs")
    uri = request.getfixturevalue("uri" if kind == "s3" else "gs_uri")
    proxy.on_request(lambda *_: server.put(place, {"m/w.safetensors": OTHER}), FILE, nth=3)
    assert fetched_contents(uri) == {**MODEL, "w.safetensors": OTHER}


def test_object_replaced_repeatedly(s3_proxy: FaultProxy, uri: str, s3: S3Server, cache_folder: Path) -> None:
    place = uri.split("/")[2]

    def replace(*_: str) -> None:
        s3.put(place, {"m/w.safetensors": random.randbytes(len(WEIGHTS))})

    for turn in range(1, 60):
        s3_proxy.on_request(replace, FILE, nth=turn, method="HEAD")
    with pytest.raises(SourceError, match="changed 3 times while it was fetched"):
        fetch_entry(uri)
    assert_nothing_left(cache_folder)


@pytest.mark.parametrize(
    "fault", [{"kind": "status", "value": 503, "times": 2}, {"kind": "flip", "times": 1, "after_bytes": 9}], ids=str
)
def test_transient_gcs_faults_are_retried(gcs_proxy: FaultProxy, gs_uri: str, fault: dict[str, Any]) -> None:
    gcs_proxy.fault(path="alt=media.*", **fault)
    assert fetched_contents(gs_uri) == MODEL


def test_permanent_gcs_faults(gcs_proxy: FaultProxy, gs_uri: str, cache_folder: Path) -> None:
    gcs_proxy.fault("flip", "safetensors.*alt=media", after_bytes=9)
    with pytest.raises(SourceError, match=r"w\.safetensors is damaged: its crc32c is"):
        fetched_contents(gs_uri)
    gcs_proxy.clear()
    gcs_proxy.fault("status", "safetensors.*alt=media")
    with pytest.raises(SourceError, match=r"w\.safetensors could not be fetched in 3 tries: the server answered 500; "):
        fetched_contents(gs_uri)
    assert_nothing_left(cache_folder)
    gcs_proxy.clear()
    assert fetched_contents(gs_uri) == MODEL
