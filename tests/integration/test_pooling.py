"""Models that do not generate: embeddings, classification, scores; and every model's own answer to the rest."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx
import pytest

from tests.integration.service import Service
from tests.integration.test_openai_api import failure

EMBEDDINGS = "/v1/embeddings"
TEXTS = ["The capital of France is Paris.", "Tell me a story."]


def vectors(reply: httpx.Response) -> list[list[float]]:
    assert reply.status_code == 200, reply.text
    return [item["embedding"] for item in reply.json()["data"]]


def test_embeddings_of_texts_and_tokens(kinds: httpx.Client) -> None:
    both = kinds.post(EMBEDDINGS, json={"model": "embedder", "input": TEXTS})
    first, second = vectors(both)
    assert len(first) == 256
    assert first != second
    assert sum(x * x for x in first) == pytest.approx(1, abs=1e-2)
    body = both.json()
    assert (body["object"], body["model"]) == ("list", "embedder")
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
    [alone] = vectors(kinds.post(EMBEDDINGS, json={"model": "embedder", "input": TEXTS[0]}))
    assert alone == pytest.approx(first, abs=2e-2)
    tokens = kinds.post("/tokenize", json={"model": "embedder", "prompt": TEXTS[0]}).json()["tokens"]
    [by_tokens] = vectors(kinds.post(EMBEDDINGS, json={"model": "embedder", "input": tokens}))
    assert by_tokens == pytest.approx(first, abs=2e-2)


def test_embeddings_as_base64_and_shorter(kinds: httpx.Client) -> None:
    ask = {"model": "embedder", "input": TEXTS[0]}
    [plain] = vectors(kinds.post(EMBEDDINGS, json=ask))
    reply = kinds.post(EMBEDDINGS, json={**ask, "encoding_format": "base64"}).json()
    raw = base64.b64decode(reply["data"][0]["embedding"])
    assert struct.unpack(f"{len(raw) // 4}f", raw) == pytest.approx(plain, abs=2e-2)
    [short] = vectors(kinds.post(EMBEDDINGS, json={**ask, "dimensions": 64}))
    assert len(short) == 64
    status, error = failure(kinds.post(EMBEDDINGS, json={**ask, "dimensions": 100}))
    assert (status, "[64, 128, 256]" in error["message"]) == (400, True)


def test_embeddings_of_messages_go_through_the_chat_template(kinds: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    [by_messages] = vectors(kinds.post(EMBEDDINGS, json={"model": "embedder", "messages": messages}))
    tokens = kinds.post("/tokenize", json={"model": "embedder", "messages": messages, "add_generation_prompt": False})
    [by_tokens] = vectors(kinds.post(EMBEDDINGS, json={"model": "embedder", "input": tokens.json()["tokens"]}))
    assert by_messages == pytest.approx(by_tokens, abs=2e-2)


def test_openais_client_embeds(surface: Service) -> None:
    reply = surface.openai().embeddings.create(model="embedder", input=TEXTS)
    assert [len(item.embedding) for item in reply.data] == [256, 256]


def test_an_embedder_scores_reranks_and_pools(kinds: httpx.Client) -> None:
    asked = {"model": "embedder", "text_1": TEXTS[0], "text_2": TEXTS}
    for path in ("/score", "/v1/score"):
        same, other = [item["score"] for item in kinds.post(path, json=asked).json()["data"]]
        assert same == pytest.approx(1, abs=1e-2)
        assert other < same
    pooled = kinds.post("/pooling", json={"model": "embedder", "input": TEXTS[0]})
    assert pooled.status_code == 200
    assert pooled.json()["data"][0]["data"]


def test_a_classifier_names_its_labels(kinds: httpx.Client) -> None:
    reply = kinds.post("/classify", json={"model": "classifier", "input": ["It rains in Paris", "soup"]})
    first, second = reply.json()["data"]
    assert {first["label"], second["label"]} <= {"weather", "travel", "food"}
    assert sum(first["probs"]) == pytest.approx(1, abs=1e-2)
    assert first["num_classes"] == 3
    assert kinds.post("/pooling", json={"model": "classifier", "input": "soup"}).status_code == 200


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_reranker_puts_documents_in_order(kinds: httpx.Client, path: str) -> None:
    documents = ["It rains in Paris", "soup", "Paris"]
    body = {"model": "reranker", "query": "capital", "documents": documents, "top_n": 2}
    results = kinds.post(path, json=body).json()["results"]
    assert len(results) == 2
    assert results[0]["relevance_score"] >= results[1]["relevance_score"]
    assert results[0]["document"]["text"] == documents[results[0]["index"]]


def test_a_reranker_scores_pairs(kinds: httpx.Client) -> None:
    body = {"model": "reranker", "text_1": "capital", "text_2": ["It rains in Paris", "soup"]}
    first, second = [item["score"] for item in kinds.post("/v1/score", json=body).json()["data"]]
    assert 0 < second < 1
    assert first != second


@pytest.mark.parametrize(
    ("model", "path", "body", "said"),
    [
        ("embedder", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "embeddings"),
        ("embedder", "/v1/completions", {"prompt": "x"}, "embeddings (/v1/embeddings"),
        ("embedder", "/v1/responses", {"input": "x"}, "embeddings"),
        ("embedder", "/classify", {"input": "x"}, "embeddings"),
        ("classifier", "/v1/embeddings", {"input": "x"}, "classification (/classify)"),
        ("classifier", "/v1/messages", {"messages": [], "max_tokens": 3}, "classification"),
        ("reranker", "/v1/completions", {"prompt": "x"}, "reranking (/rerank"),
        ("extras", "/v1/rerank", {"query": "x", "documents": []}, "It supports chat (/v1/chat/completions"),
        ("whisper", "/v1/embeddings", {"input": "x"}, "transcription (/v1/audio/transcriptions)"),
    ],
)
def test_what_a_model_cannot_do_is_answered_with_what_it_can(
    kinds: httpx.Client, model: str, path: str, body: dict[str, Any], said: str
) -> None:
    status, error = failure(kinds.post(path, json={"model": model, **body}))
    assert (status, error["param"]) == (400, "model")
    assert f"The model `{model}` does not support" in error["message"]
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (EMBEDDINGS, {"model": "embedder"}, "input"),
        (EMBEDDINGS, {"model": "embedder", "input": {"a": 1}}, "input"),
        (EMBEDDINGS, {"model": "embedder", "input": [10_000_000]}, "input"),
        (EMBEDDINGS, {"model": "embedder", "input": "x", "encoding_format": "hex"}, "encoding_format"),
        (EMBEDDINGS, {"model": "embedder", "input": "x", "dimensions": 100}, "dimensions"),
        (EMBEDDINGS, {"model": "embedder", "input": "word " * 3000}, "input"),
        (EMBEDDINGS, {"model": "embedder", "messages": [{"role": 7}]}, "messages"),
        ("/v1/score", {"model": "reranker", "text_1": 7, "text_2": "x"}, "text_1"),
        ("/v1/score", {"model": "reranker", "text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/v1/rerank", {"model": "reranker", "query": "x"}, "documents"),
        ("/v1/rerank", {"model": "reranker", "query": "x", "documents": []}, "documents"),
        ("/v1/rerank", {"model": "reranker", "query": "x", "documents": ["a"], "top_n": "z"}, "top_n"),
        ("/classify", {"model": "classifier", "input": None}, "input"),
        ("/classify", {"model": "classifier", "input": "word " * 3000}, "input"),
        ("/tokenize", {"model": "classifier", "prompt": 7}, "prompt"),
        ("/detokenize", {"model": "classifier", "tokens": "x"}, "tokens"),
    ],
)
def test_wrong_fields_are_400_and_named(kinds: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    status, error = failure(kinds.post(path, json=body))
    assert (status, error["param"]) == (400, param), error
    assert "'input':" not in error["message"]
