"""The hub, as its own client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha1, sha256
from pathlib import Path

import pytest
import urllib3
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.servers.hub import HubServer

CONFIG = b'{"a": 1}'
WEIGHTS = bytes(range(256)) * 64
FILES: dict[str, bytes | Path] = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "sub/deep/é f.txt": b"text"}


@pytest.fixture(params=[False, True], ids=["small files at once", "small files from elsewhere"])
def hub(request: pytest.FixtureRequest) -> Iterator[HubServer]:
    with HubServer(resolve_cache=request.param) as hub:
        yield hub


def api(hub: HubServer, token: str | bool = False) -> HfApi:
    """The hub's client."""
    return HfApi(endpoint=hub.url, token=token)


def url(hub: HubServer, path: str, revision: str = "main") -> str:
    """A file's address."""
    return hf_hub_url("org/model", path, revision=revision, endpoint=hub.url)


def test_what_a_repository_holds(hub: HubServer) -> None:
    commit = hub.commit("org/model", FILES)
    info = api(hub).model_info("org/model", files_metadata=True)
    assert info.sha == commit
    config, weights, _ = info.siblings or []
    assert (config.rfilename, config.size, config.lfs) == ("config.json", len(CONFIG), None)
    assert config.blob_id == sha1(b"blob 8\0" + CONFIG).hexdigest()
    assert weights.lfs is not None
    assert (weights.lfs.sha256, weights.lfs.size) == (sha256(WEIGHTS).hexdigest(), len(WEIGHTS))
    tree = {entry.path for entry in api(hub).list_repo_tree("org/model", recursive=True)}
    assert tree == {*FILES, "sub", "sub/deep"}
    assert [entry.path for entry in api(hub).list_repo_tree("org/model", "sub")] == ["sub/deep"]


def test_a_file_in_git(hub: HubServer) -> None:
    commit = hub.commit("org/model", FILES)
    metadata = get_hf_file_metadata(url(hub, "config.json"))
    assert (metadata.commit_hash, metadata.etag, metadata.size) == (
        commit,
        sha1(b"blob 8\0" + CONFIG).hexdigest(),
        len(CONFIG),
    )
    assert urllib3.request("GET", url(hub, "config.json")).data == CONFIG


def test_a_file_in_lfs(hub: HubServer) -> None:
    commit = hub.commit("org/model", FILES)
    metadata = get_hf_file_metadata(url(hub, "model.safetensors"), token="mine")
    assert (metadata.commit_hash, metadata.etag, metadata.size) == (commit, sha256(WEIGHTS).hexdigest(), len(WEIGHTS))
    assert metadata.location.startswith(f"{hub.cdn_url}/cdn/")
    assert hub.requests[-1].headers["authorization"] == "Bearer mine"
    assert not hub.cdn_requests
    whole = urllib3.request("GET", metadata.location)
    etag = whole.headers["etag"]
    for headers, status, data in (
        ({"Range": "bytes=10-19"}, 206, WEIGHTS[10:20]),
        ({"Range": "bytes=-5"}, 206, WEIGHTS[-5:]),
        ({"Range": "bytes=10-", "If-Match": etag}, 206, WEIGHTS[10:]),
        ({"Range": "bytes=10-", "If-Match": '"x"'}, 412, b""),
        ({"Range": "bytes=10-19", "If-Range": '"x"'}, 200, WEIGHTS),
        ({"Range": f"bytes={len(WEIGHTS)}-"}, 416, b""),
    ):
        answer = urllib3.request("GET", metadata.location, headers=headers)
        assert (answer.status, answer.data) == (status, data)


def test_a_whole_snapshot(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(WEIGHTS)
    hub.commit("org/model", FILES | {"model.safetensors": tmp_path / "weights"})
    there = Path(snapshot_download("org/model", cache_dir=tmp_path, endpoint=hub.url, token="mine"))
    assert {name: (there / name).read_bytes() for name in FILES} == FILES
    assert hub.cdn_requests
    assert not any("authorization" in request.headers for request in hub.cdn_requests)


def test_older_commits_branches_and_tags(hub: HubServer) -> None:
    first = hub.commit("gpt2", {"f": b"1"})
    hub.tag("gpt2", "v1")
    second = hub.commit("gpt2", {"f": b"2"})
    branch = hub.commit("gpt2", {"f": b"3"}, revision="feature/x")
    for revision, commit in (
        ("main", second),
        (first, first),
        (first[:8], first),
        ("v1", first),
        ("feature/x", branch),
    ):
        assert api(hub).model_info("gpt2", revision=revision).sha == commit
        assert get_hf_file_metadata(hf_hub_url("gpt2", "f", revision=revision, endpoint=hub.url)).commit_hash == commit
    refs = api(hub).list_repo_refs("gpt2")
    assert {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)} == {
        "main": second,
        "feature/x": branch,
        "v1": first,
    }


def test_models_of_an_author(hub: HubServer) -> None:
    for name in ("org/a", "org/b", "other/c"):
        hub.commit(name, {})
    hub.label("org/b", "lora")
    assert [model.id for model in api(hub).list_models(author="org")] == ["org/a", "org/b"]
    (only,) = api(hub).list_models(author="org", filter="lora")
    assert (only.id, only.tags) == ("org/b", ["lora"])


def test_what_is_not_there(hub: HubServer) -> None:
    hub.commit("org/model", FILES)
    for token in (False, "mine"):
        with pytest.raises(RepositoryNotFoundError):
            api(hub, token).model_info("org/none")
    with pytest.raises(RevisionNotFoundError):
        api(hub).model_info("org/model", revision="none")
    with pytest.raises(RevisionNotFoundError):
        get_hf_file_metadata(url(hub, "config.json", "none"))
    with pytest.raises(EntryNotFoundError):
        get_hf_file_metadata(url(hub, "none.json"))
    with pytest.raises(EntryNotFoundError):
        list(api(hub).list_repo_tree("org/model", "none"))


def test_a_gate(hub: HubServer, tmp_path: Path) -> None:
    hub.commit("org/model", FILES)
    hub.gate("org/model", "mine")
    assert api(hub).model_info("org/model").gated == "manual"
    for token, status in ((False, 401), ("another", 403)):
        with pytest.raises(GatedRepoError) as caught:
            get_hf_file_metadata(url(hub, "config.json"), token=token)
        assert caught.value.response.status_code == status
    assert get_hf_file_metadata(url(hub, "config.json"), token="mine").size == len(CONFIG)
    with pytest.raises(GatedRepoError):
        snapshot_download("org/model", cache_dir=tmp_path, endpoint=hub.url, token=False)
