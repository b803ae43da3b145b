"""Having a model on this node."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from rayllm.config import BucketSource, HubSource, LocalSource
from rayllm.errors import ConfigError, SourceError
from rayllm.sources import fetch, find_weights


def test_a_local_folder_is_taken_where_it_is(tmp_path: Path) -> None:
    for name in ("config.json", "b.safetensors", "a.safetensors"):
        (tmp_path / name).touch()
    assert fetch(LocalSource(path=str(tmp_path)), "m") == tmp_path
    assert [path.name for path in find_weights(tmp_path, False, "m")] == ["a.safetensors", "b.safetensors"]


def test_a_local_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"model `m`: model_source .*none is no folder on this node"):
        fetch(LocalSource(path=str(tmp_path / "none")), "m")


def test_a_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    assert fetch(LocalSource(path=str(tmp_path)), "m", weights=False) == tmp_path
    with pytest.raises(ConfigError):
        fetch(LocalSource(path=str(tmp_path)), "m")


def test_buckets_are_refused_by_name() -> None:
    with pytest.raises(SourceError, match="s3://b/x cannot be fetched"):
        fetch(BucketSource(bucket_uri="s3://b/x"), "m")


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that answers as the real one does for repositories of these names."""

    answers: ClassVar = {
        "gated": (403, "GatedRepo"),
        "nobody": (404, "RepoNotFound"),
        "revised": (404, "RevisionNotFound"),
    }

    def do_GET(self) -> None:
        status, code = next(answer for name, answer in self.answers.items() if name in self.path)
        body = json.dumps({"error": code}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub's client pointed at a hub of ours."""
    from huggingface_hub import constants

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", endpoint, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    yield
    server.shutdown()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (HubSource(repo_id="org/gated"), "`org/gated` on the HuggingFace hub is gated: ask for access"),
        (HubSource(repo_id="org/nobody"), "`org/nobody`: the HuggingFace hub has no such repository"),
        (HubSource(repo_id="org/revised", revision="v9"), "at revision `v9`: the HuggingFace hub has no such revision"),
    ],
)
def test_what_the_hub_refuses_is_told_with_the_way_out(hub: None, source: HubSource, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        fetch(source, "m")
    assert said in caught.value.message
    assert caught.value.message.startswith("model `m`: ")


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match="is not in the local cache and the HuggingFace hub cannot be reached"):
        fetch(HubSource(repo_id="org/nobody"), "m")
