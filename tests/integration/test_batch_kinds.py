"""Batches through models that do not write, or that see: rows get what requests get."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray.data import DataContext, ExecutionResources

from rayllm.batch import VLLMProcessorConfig, build_llm_processor
from rayllm.batch.rows import ERROR
from rayllm.config.load import model_from
from tests.integration.service import Service
from tests.integration.test_batches import counts, create, has_ended, lines, wait
from tests.integration.test_media import CAPITALS, picture

TEXTS = ["It rains in Paris", "soup", "Tell me a story."]
QUESTION = "What is the capital?"
Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def answered(surface_configs: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Has an engine with a model of that application answer rows; gives them in their order."""
    # The cluster of these tests has more CPUs on paper than there are.
    monkeypatch.setattr(DataContext.get_current().execution_options, "resource_limits", ExecutionResources(cpu=4))

    def answer(model: str, rows: list[dict[str, Any]], **config: Any) -> list[dict[str, Any]]:
        loaded = model_from(surface_configs[model], model, ())
        processor = build_llm_processor(VLLMProcessorConfig(model=loaded, preserve_order=True, **config))
        # One block, so that one process makes their prompts.
        return list(processor(ray.data.from_items(rows, override_num_blocks=1)).take_all())

    return answer


def test_rows_are_classified(kinds: httpx.Client, answered: Rows) -> None:
    online = kinds.post("/classify", json={"model": "classifier", "input": TEXTS}).json()["data"]
    rows = answered("classifier", [*({"prompt": text} for text in TEXTS), {"prompt": None}], task_type="classify")
    assert rows.pop()[ERROR] == "a row needs `messages`, a `prompt` or `prompt_token_ids`."
    for row, asked in zip(rows, online, strict=True):
        assert row[ERROR] is None
        assert row["label"] == asked["label"]
        assert list(row["probs"]) == pytest.approx(asked["probs"], abs=2e-2)


def test_pairs_are_scored(kinds: httpx.Client, answered: Rows) -> None:
    body = {"model": "reranker", "text_1": "capital", "text_2": TEXTS}
    online = [item["score"] for item in kinds.post("/score", json=body).json()["data"]]
    rows = answered("reranker", [*({"text_1": "capital", "text_2": text} for text in TEXTS), {"text_1": "alone"}])
    assert rows.pop()[ERROR] == "a row to score needs `text_1` and `text_2`."
    assert [row[ERROR] for row in rows] == [None] * len(TEXTS)
    assert [row["score"] for row in rows] == pytest.approx(online, abs=2e-2)


def test_pictures_are_seen(answered: Rows, surface: Service, tmp_path: Path) -> None:
    address = {colour: picture(colour) for colour in CAPITALS}
    file = tmp_path / "blue.png"
    file.write_bytes(base64.b64decode(address["blue"].partition(",")[2]))
    shown = {"red": {"type": "image_url", "image_url": {"url": address["red"]}}, "blue": {"image": str(file)}}
    rows = [
        {
            "messages": [{"role": "user", "content": [{"type": "image", **part}, {"type": "text", "text": QUESTION}]}],
            "sampling_params": {"temperature": 0, "max_tokens": 24},
        }
        for part in shown.values()
    ]
    rows.append({**rows[0], "messages": [{"role": "user", "content": [{"type": "image", "image": "none.png"}]}]})
    red, blue, missing = answered("vision", rows, has_images=True)
    assert (red[ERROR], blue[ERROR]) == (None, None)
    assert CAPITALS["red"] in red["generated_text"]
    assert CAPITALS["blue"] in blue["generated_text"]
    assert "`none.png` cannot be read: No such file" in missing[ERROR]


def test_a_batch_of_the_service_has_an_engine_of_its_own(surface: Service) -> None:
    client = surface.openai()
    asked = client.embeddings.create(model="embedder", input=TEXTS)
    requests = [
        {
            "custom_id": text,
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "embedder", "input": text, "encoding_format": "float"},
        }
        for text in TEXTS
    ]
    batch = wait(client, create(client, requests, "/v1/embeddings").id, has_ended)
    assert (batch.status, counts(batch)) == ("completed", (3, 3, 0))
    answers = lines(client, batch.output_file_id)
    for text, online in zip(TEXTS, asked.data, strict=True):
        [found] = answers[text]["response"]["body"]["data"]
        assert found["embedding"] == pytest.approx(online.embedding, abs=2e-2)
