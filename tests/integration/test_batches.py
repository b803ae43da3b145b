"""Batches on the real stack: OpenAI's client, the router, a runner, Ray Data, the models that serve everybody."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import psutil
import pytest
import ray
from openai import APIConnectionError, ConflictError, InternalServerError, OpenAI
from openai.types import Batch

from rayllm.serving.batch_api.execution.runner import NAMESPACE
from tests.integration.service import APP
from tests.integration.test_processes import process

CHAT = "/v1/chat/completions"
CAPITALS = {"France": "Paris", "Germany": "Berlin", "Japan": "Tokyo"}
# A minute of work for the demo on a fast CPU, which is long enough to be in the middle of it.
MANY, SOME = 4000, 250
FIXED: dict[str, Any] = {"max_tokens": 32, "min_tokens": 32, "ignore_eos": True, "stop": None}
ENDED = ("completed", "failed", "expired", "cancelled")


def request(custom_id: str, country: str = "France", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"What is the capital of {country}?"}]
    body = {"model": "rayllm-demo", "messages": messages, "temperature": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def create(client: OpenAI, requests: Iterable[Any], endpoint: Any = CHAT, window: Any = "24h") -> Batch:
    content = "".join(json.dumps(entry) + "\n" for entry in requests).encode()
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window)


def wait(client: OpenAI, batch_id: str, condition: Callable[[Batch], bool], seconds: float = 420) -> Batch:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            batch = client.batches.retrieve(batch_id)
        except (APIConnectionError, InternalServerError):
            # The router may be away for a while.
            batch = None
        if batch is not None and condition(batch):
            return batch
        time.sleep(0.5)
    raise AssertionError(batch)


def has_ended(batch: Batch) -> bool:
    return batch.status in ENDED


def has_answers(batch: Batch) -> bool:
    return batch.request_counts is not None and batch.request_counts.completed > 0


def counts(batch: Batch) -> tuple[int, int, int]:
    counted = batch.request_counts
    assert counted is not None
    return counted.total, counted.completed, counted.failed


def lines(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a file with answers, by `custom_id`; none where there is no file."""
    if file_id is None:
        return {}
    parsed = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line for line in parsed}
    assert len(found) == len(parsed)
    return found


def text(line: Any) -> str:
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


def runners() -> list[str]:
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == NAMESPACE]


@pytest.fixture
def many(openai: OpenAI) -> Batch:
    """A batch in the middle of its work."""
    made = create(openai, [request(str(number), **FIXED) for number in range(MANY)])
    return wait(openai, made.id, has_answers)


def test_a_batch_is_answered(openai: OpenAI) -> None:
    requests = [request(country, country) for country in CAPITALS]
    requests += [request("alias", model="gpt-demo"), request("pirate", model="rayllm-demo:pirate")]
    requests += [request("nobody", model="no-such-model"), request("hot", temperature=99)]
    batch = wait(openai, create(openai, requests).id, has_ended)
    assert (batch.status, batch.errors, counts(batch)) == ("completed", None, (7, 5, 2))
    answers, failures = lines(openai, batch.output_file_id), lines(openai, batch.error_file_id)
    assert list(answers) == [*CAPITALS, "alias", "pirate"]
    for country, capital in CAPITALS.items():
        assert capital in text(answers[country])
        assert answers[country]["response"]["status_code"] == 200
        assert answers[country]["error"] is None
    assert "Paris" in text(answers["alias"])
    assert text(answers["pirate"]) != text(answers["France"])
    assert failures["nobody"]["response"]["status_code"] == 404
    assert failures["nobody"]["response"]["body"]["error"]["code"] == "model_not_found"
    assert failures["hot"]["response"]["status_code"] == 400
    times = (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert sorted(filter(None, times)) == list(times)
    assert [found.id for found in openai.batches.list(limit=1)][:1] == [batch.id]


def test_another_endpoint(openai: OpenAI) -> None:
    body = {"model": "demo/plain:1.0", "prompt": "a", "max_tokens": 3}
    requests = [{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}]
    batch = wait(openai, create(openai, requests, "/v1/completions").id, has_ended)
    assert (batch.status, counts(batch)) == ("completed", (1, 1, 0))
    assert lines(openai, batch.output_file_id)["1"]["response"]["body"]["object"] == "text_completion"


def test_a_faulty_file_is_refused_as_a_whole(openai: OpenAI) -> None:
    batch = wait(openai, create(openai, [request("1"), ["no request"], request("1")]).id, has_ended)
    assert (batch.status, batch.in_progress_at, batch.output_file_id) == ("failed", None, None)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
    ]


def test_runners_leave_when_their_batch_has_ended(openai: OpenAI) -> None:
    batch = wait(openai, create(openai, [request("1")]).id, has_ended)
    end = time.monotonic() + 30
    while f"{APP}:{batch.id}" in runners():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_a_cancelled_batch_keeps_what_was_answered(openai: OpenAI, many: Batch) -> None:
    assert openai.batches.cancel(many.id).status == "cancelling"
    batch = wait(openai, many.id, has_ended)
    total, completed, failed = counts(batch)
    assert (batch.status, total, failed) == ("cancelled", MANY, 0)
    assert 0 < completed < MANY
    assert len(lines(openai, batch.output_file_id)) == completed
    assert batch.error_file_id is None
    with pytest.raises(ConflictError):
        openai.batches.cancel(batch.id)


def test_an_expired_batch_tells_what_was_not_answered(openai: OpenAI) -> None:
    made = create(openai, [request(str(number), **FIXED) for number in range(MANY)], window="8s")
    batch = wait(openai, made.id, has_ended)
    total, completed, failed = counts(batch)
    assert (batch.status, total, completed + failed) == ("expired", MANY, MANY)
    answers, failures = lines(openai, batch.output_file_id), lines(openai, batch.error_file_id)
    assert (len(answers), len(failures)) == (completed, failed)
    assert {line["error"]["code"] for line in failures.values()} == {"batch_expired"}


def test_what_is_in_the_middle_outlives_its_router(openai: OpenAI, http: httpx.Client, many: Batch) -> None:
    router = process("ray::ServeReplica:rayllm:Router")
    router.kill()
    psutil.wait_procs([router], timeout=30)
    before = counts(many)[1]
    after = wait(openai, many.id, lambda batch: has_ended(batch) or counts(batch)[1] > before)
    assert after.status == "in_progress"
    assert f"{APP}:{many.id}" in runners()
    openai.batches.cancel(many.id)
    batch = wait(openai, many.id, has_ended)
    assert (batch.status, counts(batch)[2]) == ("cancelled", 0)
    assert http.get("/ready").status_code == 200


def test_what_is_in_the_middle_outlives_its_runner(openai: OpenAI) -> None:
    requests = [request(str(number), **FIXED) for number in range(SOME)]
    some = wait(openai, create(openai, requests).id, has_answers)
    assert some.status == "in_progress"
    ray.kill(ray.get_actor(f"{APP}:{some.id}", namespace=NAMESPACE))
    batch = wait(openai, some.id, has_ended, 400)
    assert (batch.status, counts(batch)) == ("completed", (SOME, SOME, 0))
    assert list(lines(openai, batch.output_file_id)) == [str(number) for number in range(SOME)]
