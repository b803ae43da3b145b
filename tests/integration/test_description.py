"""The service answers what its OpenAPI description says, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from rayllm.serving.router.application import DESCRIPTION as PATH
from tests.compatibility.cases import CASES, Case
from tests.integration.description import DESCRIPTION, check_described
from tests.integration.test_media import sound

# Of each endpoint. Others may be refused, which is described as well.
FIRST = list({case.path: case for case in reversed(CASES)}.values())
TEXT = "The capital of France is Paris."


def test_the_router_serves_the_description(http: httpx.Client) -> None:
    reply = http.get(PATH)
    assert reply.json() == DESCRIPTION
    check_described(reply, PATH)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.name}")
def test_replies_of_models_are_as_described(http: httpx.Client, case: Case) -> None:
    for stream in (False, True) if case.streams else (False,):
        reply = http.post(case.path, json={**case.body, "stream": True} if stream else case.body)
        assert reply.status_code == 200 or case not in FIRST, reply.text
        check_described(reply, case.path)


def test_scores_by_generation_are_as_described(http: httpx.Client) -> None:
    body = {"model": "rayllm-demo", "query": TEXT, "items": [TEXT], "label_token_ids": [300, 301]}
    reply = http.post("/generative_scoring", json=body)
    assert reply.status_code == 200, reply.text
    check_described(reply, "/generative_scoring")


def test_replies_of_the_router_are_as_described(http: httpx.Client) -> None:
    for path in ("/v1/models", "/health", "/ready", "/version", "/metrics", "/ui"):
        check_described(http.get(path).raise_for_status(), path)
    check_described(http.get("/v1/models/rayllm-demo").raise_for_status(), "/v1/models/{name}")


def test_files_and_batches_are_as_described(http: httpx.Client) -> None:
    def ask(method: str, path: str, described: str, **fields: Any) -> str:
        reply = http.request(method, path, **fields).raise_for_status()
        check_described(reply, described)
        return str(reply.json()["id"]) if method == "POST" else ""

    line = {"custom_id": "1", "method": "POST", "url": "/tokenize", "body": {"model": "rayllm-demo", "prompt": TEXT}}
    form = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", json.dumps(line))}}
    file, other = (ask("POST", "/v1/files", "/v1/files", **form) for _ in range(2))
    ask("GET", "/v1/files", "/v1/files")
    ask("GET", f"/v1/files/{file}", "/v1/files/{id}")
    ask("GET", f"/v1/files/{file}/content", "/v1/files/{id}/content")
    ask("DELETE", f"/v1/files/{other}", "/v1/files/{id}")
    batch = {"input_file_id": file, "endpoint": "/tokenize", "completion_window": "1h"}
    name = ask("POST", "/v1/batches", "/v1/batches", json=batch)
    ask("GET", "/v1/batches", "/v1/batches")
    ask("GET", f"/v1/batches/{name}", "/v1/batches/{id}")
    # It may have ended, which is an error.
    check_described(http.post(f"/v1/batches/{name}/cancel"), "/v1/batches/{id}/cancel")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "embedder", "input": [TEXT]}),
        ("/v1/embeddings", {"model": "embedder", "input": TEXT, "encoding_format": "base64"}),
        ("/v1/embeddings", {"model": "embedder", "input": TEXT, "encoding_format": "bytes"}),
        ("/v2/embed", {"model": "embedder", "texts": [TEXT]}),
        ("/score", {"model": "embedder", "text_1": TEXT, "text_2": [TEXT]}),
        ("/v1/score", {"model": "reranker", "text_1": TEXT, "text_2": [TEXT]}),
        ("/rerank", {"model": "reranker", "query": "capital", "documents": [TEXT]}),
        ("/pooling", {"model": "embedder", "input": TEXT}),
        ("/classify", {"model": "classifier", "input": TEXT}),
    ],
)
def test_replies_of_models_that_do_not_generate_are_as_described(
    kinds: httpx.Client, path: str, body: dict[str, object]
) -> None:
    reply = kinds.post(path, json=body)
    assert reply.status_code == 200, reply.text
    check_described(reply, path)


@pytest.mark.parametrize("fields", [{}, {"response_format": "verbose_json"}, {"stream": "true"}], ids=str)
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_transcripts_are_as_described(kinds: httpx.Client, path: str, fields: dict[str, str]) -> None:
    form = {"model": "whisper", "language": "en", "temperature": "0", **fields}
    reply = kinds.post(path, data=form, files={"file": ("a.wav", sound(), "audio/wav")})
    assert reply.status_code == 200, reply.text
    check_described(reply, path)
