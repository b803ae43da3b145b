"""Where the time of a request went, against a client's own clock and with causes made on purpose."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import httpx
import pytest
import ray

from rayllm.serving.cluster.status_report import find_request, last_requests
from tests.integration.service import ROOT
from tests.integration.test_leaving import LONG, within
from tests.integration.test_openai_api import CHAT, COMPLETIONS

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
DEMO = {"model": "rayllm-demo", **QUESTION}
RELAYED = {"origin": "http://elsewhere"}


def record_of(request_id: str) -> dict[str, Any]:
    """The request's record, once it has ended."""
    assert within(60, lambda: find_request(request_id) is not None)
    record = find_request(request_id)
    assert record is not None
    return record


def largest_part(record: dict[str, Any]) -> str:
    return max(record["parts"], key=lambda name: record["parts"][name])


@pytest.mark.parametrize("headers", [{}, RELAYED], ids=["handed over", "relayed"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_parts_add_up_to_what_the_client_waited(http: httpx.Client, headers: dict[str, str], stream: bool) -> None:
    body = {**LONG, "min_tokens": 120, "max_tokens": 120, "stream": stream}
    http.post(CHAT, json=body, headers=headers)
    started_at = time.perf_counter()
    reply = http.post(CHAT, json=body, headers={"x-rayllm-timing": "1", **headers})
    waited = time.perf_counter() - started_at
    record = record_of(reply.headers["x-request-id"])
    assert (record["model"], record["status"], record["completion_tokens"]) == ("rayllm-demo", 200, 120)
    assert sum(record["parts"].values()) == pytest.approx(record["total_s"], rel=1e-3)
    phases = ("router_s", "waiting_s", "queued_s", "prefill_s", "decode_s")
    assert sum(record[phase] for phase in phases) == pytest.approx(record["total_s"], rel=1e-3)
    # The client's own share is some milliseconds: connecting, sending, reading and parsing.
    assert record["total_s"] == pytest.approx(waited, rel=0.02, abs=0.02)
    assert largest_part(record) == "decode"
    assert "the engine generated 120 tokens, one every" in record["explanation"]
    assert 0 < record["slowest_gap_s"] < record["parts"]["decode"]
    timing = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    if not stream:
        assert float(timing["decode"]) == pytest.approx(1000 * record["parts"]["decode"], abs=0.1)
    elif not headers:
        assert {"router", "prepare", "prefill"} <= timing.keys()


def test_replies_have_no_timing_unless_asked_for(http: httpx.Client) -> None:
    assert "server-timing" not in http.post(CHAT, json={**DEMO, "max_tokens": 1}).headers


def test_a_full_engine(http: httpx.Client) -> None:
    filling = {**LONG, "n": 64, "min_tokens": 120, "max_tokens": 120, "stream": True}
    with http.stream("POST", CHAT, json=filling, timeout=120) as filler:
        lines = filler.iter_lines()
        # The first token comes when all 64 are in the engine.
        assert next(lines).startswith("data: ")
        reply = http.post(CHAT, json={**DEMO, "max_tokens": 1}, timeout=120)
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    record = record_of(reply.headers["x-request-id"])
    assert largest_part(record) == "queue"
    assert "in the engine's queue" in record["explanation"]


def test_a_long_prompt(http: httpx.Client) -> None:
    def asked(prompt: list[int]) -> dict[str, Any]:
        body = {"model": "rayllm-demo", "prompt": prompt, "max_tokens": 1, "temperature": 0}
        return record_of(http.post(COMPLETIONS, json=body).headers["x-request-id"])

    # None begins as another does, so none is cached. The machine may pause during one of them.
    records = [asked([*range(first, first + 1000)]) for first in range(100, 105)]
    assert all(record["prompt_tokens"] == 1000 and not record["cached_tokens"] for record in records)
    assert [largest_part(record) for record in records].count("prefill") >= 3
    explained = next(record for record in records if largest_part(record) == "prefill")
    assert "the engine read the prompt: 1000 tokens that were not cached, and 0 that were" in explained["explanation"]


def test_refusals_are_kept_as_well(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**DEMO, "model": "no-such-model"})
    record = record_of(reply.headers["x-request-id"])
    assert (record["status"], record["error"], record["replica"]) == (404, "model_not_found", "")


def test_the_command(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**DEMO, "model": "rayllm-demo:pirate"}, headers={"x-request-id": "to-explain"})
    assert reply.status_code == 200
    record_of("to-explain")
    assert last_requests(5)[0]["id"] == "to-explain"
    address = ray.get_runtime_context().gcs_address

    def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rayllm", "explain", *arguments, "--address", address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)

    done = explain("to-explain")
    assert done.returncode == 0, done.stderr
    assert "/v1/chat/completions for rayllm-demo:pirate: 200 after" in done.stdout
    assert "because it is the only replica" in done.stdout
    unknown = explain("never-seen")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no router of this cluster has the request `never-seen`" in unknown.stderr


def test_only_administrators_look_at_requests_over_http(http: httpx.Client) -> None:
    for path in ("/v1/requests", "/v1/requests/to-explain"):
        reply = http.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied")
