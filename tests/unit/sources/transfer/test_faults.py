"""Downloads through networks and stores in trouble: right in the end, or a clear error and nothing left behind."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import BucketSource
from rayllm.errors import SourceError
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
    """A model in a bucket behind the proxy."""
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"s3://{place}/m"


@pytest.fixture
def gs_uri(gcs_proxy: FaultProxy, gcs: GcsServer, place: str) -> str:
    gcs.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"gs://{place}/m"


def got(uri: str) -> dict[str, bytes]:
    return contents(fetch(BucketSource(bucket_uri=uri), "m").folder)


def bytes_of_weights(proxy: FaultProxy) -> int:
    return sum(count for path, count in proxy.bytes_sent.items() if re.search(FILE, path))


PASSING: list[dict[str, Any]] = [
    {"kind": "status", "value": 500, "times": 2},
    {"kind": "status", "value": 503, "times": 2},
    {"kind": "status", "value": 429, "times": 1},
    {"kind": "reset", "times": 2, "after_bytes": 40_000},
    {"kind": "truncate", "times": 3, "after_bytes": 40_000},
    {"kind": "redirect", "times": 1},
    # An address may expire before it is used.
    {"kind": "status", "value": 403, "times": 1},
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault['kind']}-{fault.get('value', '')}")
def test_trouble_that_passes(s3_proxy: FaultProxy, uri: str, fault: dict[str, Any]) -> None:
    s3_proxy.fault(path=FILE, **fault)
    assert got(uri) == MODEL
    # A reset takes away what the client had not read yet; nothing else comes twice.
    assert bytes_of_weights(s3_proxy) <= len(WEIGHTS) * 1.3


def test_a_broken_part_goes_on_where_it_broke_off(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("truncate", FILE, times=1, after_bytes=30_000)
    got(uri)
    assert bytes_of_weights(s3_proxy) == len(WEIGHTS)
    starts = [int(seen.range.split("=")[1].split("-")[0]) for seen in s3_proxy.requests if seen.range]
    assert any(start % 65536 == 30_000 for start in starts)


def test_a_server_that_knows_no_ranges(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("ignore_range", FILE)
    assert got(uri) == MODEL


def test_a_file_damaged_once_is_fetched_again(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("flip", FILE, times=1, after_bytes=5)
    assert got(uri) == MODEL
    assert bytes_of_weights(s3_proxy) == 2 * len(WEIGHTS)


def test_a_stalled_request_is_given_up_and_made_again(s3_proxy: FaultProxy, uri: str) -> None:
    s3_proxy.fault("stall", FILE, value=30, times=1, after_bytes=1000)
    began = time.monotonic()
    assert contents(fetch_entry(uri, stall_s=0.5).files) == MODEL
    assert time.monotonic() - began < 15


FAILING: list[tuple[dict[str, Any], dict[str, float], str]] = [
    ({"kind": "status", "value": 500}, {}, r"w\.safetensors could not be fetched in 2 tries: the server answered 500"),
    ({"kind": "status", "value": 403}, {}, r"w\.safetensors may not be read with these credentials \(HTTP 403\)"),
    ({"kind": "status", "value": 418}, {}, r"w\.safetensors could not be fetched: the server answered 418"),
    ({"kind": "flip", "after_bytes": 5}, {}, r"w\.safetensors is damaged: its (crc32|md5) is .* twice in a row"),
    ({"kind": "truncate"}, {}, r"w\.safetensors could not be fetched in 2 tries: the connection"),
    ({"kind": "stall"}, {"stall_s": 0.3}, r"w\.safetensors could not .* 2 tries: the server sent nothing for too long"),
    ({"kind": "drip", "value": 20_000}, {"deadline_s": 1.5}, r"s3://.*/m was not fetched within 1\.5 s"),
]


@pytest.mark.parametrize(("fault", "limits", "said"), FAILING, ids=lambda given: str(given)[:40])
def test_trouble_that_stays(
    s3_proxy: FaultProxy,
    uri: str,
    cache_folder: Path,
    fault: dict[str, Any],
    limits: dict[str, float],
    said: str,
) -> None:
    s3_proxy.fault(path=FILE, **fault)
    began = time.monotonic()
    with pytest.raises(SourceError, match=said) as caught:
        fetch_entry(uri, **limits)
    assert time.monotonic() - began < 15
    assert "Signature" not in caught.value.message
    assert_nothing_left(cache_folder)
    assert len([seen for seen in s3_proxy.requests if seen.range]) <= 16
    s3_proxy.clear()
    assert contents(fetch_entry(uri).files) == MODEL


def test_a_deadline_also_ends_the_waits_between_tries(
    s3_proxy: FaultProxy, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_backoff_s", lambda failures: 60.0)
    s3_proxy.fault("status", FILE)
    began = time.monotonic()
    with pytest.raises(SourceError, match="was not fetched within 1 s"):
        fetch_entry(uri, deadline_s=1, tries=9)
    assert time.monotonic() - began < 15


def test_a_failure_ends_the_waits_of_the_others(
    s3_proxy: FaultProxy, uri: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_backoff_s", lambda failures: 60.0)
    s3_proxy.fault("status", FILE, times=2)
    s3_proxy.fault("status", FILE, value=418)
    began = time.monotonic()
    with pytest.raises(SourceError, match="418"):
        fetch_entry(uri, tries=9)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(("status", "said"), [(500, "answers 500"), (403, "access denied .*check the credentials")])
def test_a_place_that_cannot_be_listed(
    s3_proxy: FaultProxy, uri: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    monkeypatch.setattr("rayllm.buckets.s3._ATTEMPTS", 2)
    s3_proxy.fault("status", "list-type", value=status)
    with pytest.raises(SourceError, match=said):
        fetch(BucketSource(bucket_uri=uri), "m")
    # Who is refused is refused: only trouble is tried again.
    assert len(s3_proxy.requests) == (1 if status == 403 else 2)
    assert_nothing_left(cache_folder)
    s3_proxy.clear()
    assert got(uri) == MODEL


def test_objects_whose_heads_are_never_given_are_not_asked_for_over_and_over(
    s3_proxy: FaultProxy, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayllm.buckets.s3._ATTEMPTS", 2)
    s3_proxy.fault("status", method="HEAD")
    with pytest.raises(SourceError, match="answers 500"):
        fetch_entry(uri)
    # Two files and two tries of each; a thread that was about to ask may have.
    assert len([seen for seen in s3_proxy.requests if seen.method == "HEAD"]) <= 12


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_an_object_replaced_meanwhile_is_never_mixed(kind: str, request: pytest.FixtureRequest, place: str) -> None:
    proxy: FaultProxy = request.getfixturevalue("s3_proxy" if kind == "s3" else "gcs_proxy")
    server: Server = request.getfixturevalue("s3" if kind == "s3" else "gcs")
    uri = request.getfixturevalue("uri" if kind == "s3" else "gs_uri")
    proxy.on_request(lambda *_: server.put(place, {"m/w.safetensors": OTHER}), FILE, nth=3)
    assert got(uri) == {**MODEL, "w.safetensors": OTHER}


def test_an_object_replaced_for_ever(s3_proxy: FaultProxy, uri: str, s3: S3Server, cache_folder: Path) -> None:
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
def test_trouble_of_cloud_storage_that_passes(gcs_proxy: FaultProxy, gs_uri: str, fault: dict[str, Any]) -> None:
    gcs_proxy.fault(path="alt=media.*", **fault)
    assert got(gs_uri) == MODEL


def test_trouble_of_cloud_storage_that_stays(gcs_proxy: FaultProxy, gs_uri: str, cache_folder: Path) -> None:
    gcs_proxy.fault("flip", "safetensors.*alt=media", after_bytes=9)
    with pytest.raises(SourceError, match=r"w\.safetensors is damaged: its crc32c is"):
        got(gs_uri)
    gcs_proxy.clear()
    gcs_proxy.fault("status", "safetensors.*alt=media")
    with pytest.raises(SourceError, match=r"w\.safetensors could not be fetched in 3 tries: the server answered 500; "):
        got(gs_uri)
    assert_nothing_left(cache_folder)
    gcs_proxy.clear()
    assert got(gs_uri) == MODEL
