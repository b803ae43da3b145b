"""The service answers what its OpenAPI description says, and nothing else."""

from __future__ import annotations

import json

import httpx
import pytest

from rayllm.serving.router.description import PATH
from tests.compatibility.cases import CASES, Case
from tests.integration.description import DESCRIPTION, check_described
from tests.integration.test_media import sound

TEXT = "The capital of France is Paris."


def test_the_router_serves_the_description(http: httpx.Client) -> None:
    reply = http.get(PATH)
    assert reply.json() == DESCRIPTION
    check_described(reply, PATH)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.name}")
def test_replies_of_models_are_as_described(http: httpx.Client, case: Case) -> None:
    for stream in (False, True) if case.streams else (False,):
        check_described(http.post(case.path, json={**case.body, "stream": True} if stream else case.body), case.path)


def test_replies_of_the_router_are_as_described(http: httpx.Client) -> None:
    for path in ("/v1/models", "/health", "/ready", "/version", "/metrics", "/ui", "/v1/usage"):
        check_described(http.get(path), path)
    check_described(http.get("/v1/models/rayllm-demo"), "/v1/models/{name}")


def test_files_and_batches_are_as_described(http: httpx.Client) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/tokenize", "body": {"model": "rayllm-demo", "prompt": TEXT}}
    uploaded = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line))})
    check_described(uploaded, "/v1/files")
    file = f"/v1/files/{uploaded.json()['id']}"
    fields = {"input_file_id": uploaded.json()["id"], "endpoint": "/tokenize", "completion_window": "1h"}
    created = http.post("/v1/batches", json=fields)
    check_described(created, "/v1/batches")
    batch = f"/v1/batches/{created.json()['id']}"
    check_described(http.get("/v1/files"), "/v1/files")
    check_described(http.get("/v1/batches"), "/v1/batches")
    check_described(http.get(file), "/v1/files/{id}")
    check_described(http.get(f"{file}/content"), "/v1/files/{id}/content")
    check_described(http.get(batch), "/v1/batches/{id}")
    check_described(http.post(f"{batch}/cancel"), "/v1/batches/{id}/cancel")
    check_described(http.delete(file), "/v1/files/{id}")


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
