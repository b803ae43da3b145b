"""What coding agents have sent, sent again: each request is answered, in the order of events that its API has.

`python -m tests.agents.record` writes the requests, of a run of `make test-clients`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray import serve

from rayllm import build_app
from rayllm.core.endpoints import CHAT, MESSAGES, RESPONSES
from tests.integration.message_stream import MessageStream
from tests.integration.response_stream import check_stream
from tests.integration.service import DEMO
from tests.integration.surface import WEIGHTS, tiny_model

RECORDED = [json.loads(line) for line in Path(__file__).with_name("recorded_agents.jsonl").read_text().splitlines()]
# Tokens of an answer, of which the model makes no sense.
SHORT = 8
LIMITS = {CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}


@pytest.fixture(scope="module")
def recorded(proxy_url: str) -> Iterator[httpx.Client]:
    """A client of the demo with a context for the tools of coding agents."""
    demo = yaml.safe_load(DEMO.read_text())
    keys = {"generation_config": demo["generation_config"], "tool_calling": demo["tool_calling"]}
    length = 16_384
    # One request with some room.
    engine = {"hf_overrides": {"max_position_embeddings": length}, "num_gpu_blocks_override": 160}
    config = tiny_model("recorded", WEIGHTS, length, engine_kwargs=engine, **keys)
    serve.run(build_app({"llm_configs": [config]}), name="recorded", route_prefix="/recorded")
    with httpx.Client(base_url=f"{proxy_url}/recorded", timeout=120) as client:
        yield client
    serve.delete("recorded")


def title(request: dict[str, Any]) -> str:
    """Who sent a request, and where."""
    return f"{request['headers']['user-agent'].split('/')[0]}{request['path'].replace('/', '-')}"


@pytest.mark.parametrize("request_sent", RECORDED, ids=title)
def test_what_an_agent_sends_is_answered_by_the_rules(recorded: httpx.Client, request_sent: dict[str, Any]) -> None:
    path, sent = request_sent["path"], request_sent["body"]
    body = {**sent, "model": "recorded", LIMITS[path]: SHORT, "temperature": 0}
    reply = recorded.post(path, json=body, headers=request_sent["headers"])
    assert reply.status_code == 200, reply.text
    if not sent.get("stream"):
        assert reply.json()["usage"]
    elif path == RESPONSES:
        assert check_stream(reply.text)["status"] in ("completed", "incomplete")
    elif path == MESSAGES:
        assert MessageStream(reply.text).message["stop_reason"]
    else:
        check_chunks(reply.text, sent)


def check_chunks(stream: str, sent: dict[str, Any]) -> None:
    """Assert that a stream of chat completions begins, ends and counts as OpenAI's do."""
    *events, last, rest = stream.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [choices[-1]["finish_reason"]]
    wants_usage = (sent.get("stream_options") or {}).get("include_usage", False)
    assert [bool(chunk.get("usage")) for chunk in chunks][-1] == wants_usage
