"""Fetching repositories of the hub: files, revisions, credentials, errors and caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from rayllm.config import HubSource
from rayllm.core.errors import SourceError
from rayllm.sources import fetch
from tests.servers.faults import FaultProxy
from tests.servers.hub import HubServer
from tests.unit.sources.downloads import MODEL, OTHER, WEIGHTS, assert_nothing_left, contents

REPO = "org/model"
SOURCE = HubSource(repo_id=REPO)
MOVED = {**MODEL, "w.safetensors": OTHER}


@pytest.fixture
def cdn(hub: HubServer) -> Iterator[FaultProxy]:
    """A proxy in front of the server that the hub redirects large files to."""
    with FaultProxy(hub.cdn_url) as proxy:
        hub.cdn_url = proxy.url
        yield proxy


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.sources.stores.hub._ATTEMPTS", 2)


@pytest.mark.parametrize("resolve_cache", [False, True])
def test_fetch_downloads_only_files_needed_for_serving(hub: HubServer, resolve_cache: bool) -> None:
    hub.resolve_cache = resolve_cache
    unwanted = {"README.md": b"r", "pytorch_model.bin": b"p", "onnx/model.onnx": b"o"}
    commit = hub.commit(REPO, {**MODEL, "a dir/x.json": b"{}", **unwanted})
    fetched = fetch(SOURCE, "m")
    assert contents(fetched.folder) == {**MODEL, "a dir/x.json": b"{}"}
    assert fetched.version.commit == commit
    assert not [seen for seen in hub.requests if "README" in seen.path or ".onnx" in seen.path]


def test_revision_can_be_branch_tag_or_commit(hub: HubServer) -> None:
    first = hub.commit(REPO, MODEL)
    hub.tag(REPO, "v1")
    hub.commit(REPO, MOVED)
    hub.commit(REPO, {**MODEL, "config.json": b"[]"}, "next")
    for revision, wanted in {"v1": MODEL, first: MODEL, "main": MOVED}.items():
        assert contents(fetch(HubSource(repo_id=REPO, revision=revision), "m").folder) == wanted
    assert (fetch(HubSource(repo_id=REPO, revision="next"), "m").folder / "config.json").read_bytes() == b"[]"


def test_token_is_sent_to_the_hub_only(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPO, MODEL)
    hub.gate(REPO, "hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert contents(fetch(SOURCE, "m").folder) == MODEL
    assert {seen.headers.get("authorization") for seen in hub.requests} == {"Bearer hf_secret"}
    assert hub.cdn_requests
    assert not [seen for seen in hub.cdn_requests if "authorization" in seen.headers]


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_gated_repository(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, cache_folder: Path, token: str | None
) -> None:
    hub.commit(REPO, MODEL)
    hub.gate(REPO, "hf_secret")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(SourceError) as caught:
        fetch(SOURCE, "m")
    assert caught.value.message == (
        "model `m`: `org/model` on the HuggingFace hub is gated: ask for access on its page and set HF_TOKEN."
    )
    assert_nothing_left(cache_folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HubSource(repo_id="org/nobody"), "`org/nobody`: the HuggingFace hub has no such repository"),
        (HubSource(repo_id=REPO, revision="v9"), "at revision `v9`: the HuggingFace hub has no such revision"),
    ],
)
def test_missing_repository_or_revision(hub: HubServer, source: HubSource, message: str) -> None:
    hub.commit(REPO, MODEL)
    with pytest.raises(SourceError) as caught:
        fetch(source, "m")
    assert caught.value.message.startswith("model `m`: ")
    assert message in caught.value.message


def test_damaged_large_file(hub: HubServer, cdn: FaultProxy, cache_folder: Path) -> None:
    hub.commit(REPO, MODEL)
    cdn.fault("flip", after_bytes=7)
    with pytest.raises(SourceError, match=r"w\.safetensors is damaged: its sha256 is"):
        fetch(SOURCE, "m")
    assert_nothing_left(cache_folder)
    cdn.clear()
    cdn.fault("flip", times=1, after_bytes=7)
    cdn.fault("reset", times=1, after_bytes=30_000)
    assert contents(fetch(SOURCE, "m").folder) == MODEL


def test_damaged_small_file(hub: HubServer, monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    hub.commit(REPO, MODEL)
    with FaultProxy(hub.url) as proxy:
        monkeypatch.setenv("HF_ENDPOINT", proxy.url)
        proxy.fault("flip", r"resolve.*config\.json", after_bytes=0)
        with pytest.raises(SourceError, match=r"config\.json is damaged: its git is"):
            fetch(SOURCE, "m")
        assert_nothing_left(cache_folder)
        proxy.clear()
        proxy.fault("flip", r"resolve.*config\.json", times=1)
        assert contents(fetch(SOURCE, "m").folder) == MODEL


def test_expired_url_is_requested_again(hub: HubServer, cdn: FaultProxy) -> None:
    hub.commit(REPO, MODEL)
    cdn.fault("status", value=403, times=1)
    assert contents(fetch(SOURCE, "m").folder) == MODEL


def test_pinned_replicas_do_not_follow_a_branch(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(REPO, MODEL)
    old = fetch(SOURCE, "m")
    hub.commit(REPO, MOVED)
    new = fetch(SOURCE, "m")
    assert new.version != old.version
    assert contents(new.folder) == MOVED
    assert fetch(SOURCE, "m", pinned=old.version) == old
    # Another node with an empty cache.
    fresh(tmp_path / "fresh", monkeypatch)
    fetched = fetch(SOURCE, "m", pinned=old.version)
    assert fetched.version == old.version
    assert contents(fetched.folder) == MODEL


def fresh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the cache of another node."""
    from rayllm.core.settings import settings
    from rayllm.sources import node_cache

    monkeypatch.setenv("RAYLLM_CACHE_DIR", str(folder))
    settings.cache_clear()
    node_cache.cache_clear()


def test_cached_copy_is_served_if_the_hub_is_down(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPO, MODEL)
    cached = fetch(SOURCE, "m")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(SOURCE, "m") == cached
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with FaultProxy(hub.url) as proxy:
        monkeypatch.setenv("HF_ENDPOINT", proxy.url)
        proxy.fault("status", value=503)
        assert fetch(SOURCE, "m") == cached
    # The server is gone as well.
    assert fetch(SOURCE, "m") == cached


def test_error_if_the_hub_is_down_and_nothing_is_cached(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match=r"HF_HUB_OFFLINE is set; this node has no complete copy either"):
        fetch(SOURCE, "m")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with FaultProxy(hub.url) as proxy:
        monkeypatch.setenv("HF_ENDPOINT", proxy.url)
        proxy.fault("status", value=503)
        with pytest.raises(SourceError, match=r"hub cannot be reached \(503\); this node has no complete copy either"):
            fetch(SOURCE, "m")


def test_hub_client_cache_is_used(
    hub: HubServer, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.commit(REPO, MODEL)
    theirs = Path(snapshot_download(REPO, endpoint=hub.url, cache_dir=constants.HF_HUB_CACHE))
    before = len(hub.cdn_requests)
    fetched = fetch(SOURCE, "m")
    assert fetched.folder == theirs
    assert fetched.version.commit == commit
    assert contents(fetch(SOURCE, "m", in_cache=True).folder) == MODEL
    assert len(hub.cdn_requests) > before
    # Also if the hub is down.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fresh(tmp_path / "fresh", monkeypatch)
    assert fetch(SOURCE, "m").folder == theirs


def test_incomplete_hub_client_cache_is_not_used(hub: HubServer) -> None:
    hub.commit(REPO, MODEL)
    snapshot_download(REPO, endpoint=hub.url, cache_dir=constants.HF_HUB_CACHE, allow_patterns="*.json")
    assert (fetch(SOURCE, "m").folder / "w.safetensors").read_bytes() == WEIGHTS
