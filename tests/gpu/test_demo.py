"""The demo with the whole device: its answers, adapters, tools and constraints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import ray
from openai import OpenAI

from rayllm.cli.commands.doctor import findings
from rayllm.cli.shared.machine import read_machine
from tests.compatibility.cases import FRANCE, GERMANY, PARIS, TOOL
from tests.gpu.conftest import ServeModels
from tests.gpu.device import Device
from tests.gpu.models import ADAPTERS, demo
from tests.integration.test_explain import record_of

MODEL = "demo"
FOUR_ADAPTERS = ("pirate", "shout", "pirate-2", "shout-2")
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def url(device: Device, serve_models: ServeModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An application with the demo, and more adapters than an engine holds."""
    adapters = tmp_path_factory.mktemp("adapters")
    for name in FOUR_ADAPTERS:
        shutil.copytree(ADAPTERS / name.removesuffix("-2"), adapters / name)
    model = demo(
        MODEL,
        device.whole(),
        # Prompts that are longer than this are computed in chunks.
        engine_kwargs={"max_num_batched_tokens": 128, "max_num_seqs": 64, "enable_prefix_caching": True},
        lora_config={"dynamic_lora_loading_path": str(adapters), "max_num_adapters_per_replica": 2},
    )
    with serve_models(model) as url:
        yield url


@pytest.fixture(scope="module")
def openai(url: str) -> OpenAI:
    """OpenAI's client."""
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(openai: OpenAI, *messages: Any, model: str = MODEL, **more: Any) -> str:
    """The answer at temperature 0."""
    reply = openai.chat.completions.create(model=model, messages=list(messages), temperature=0, max_tokens=64, **more)
    return str(reply.choices[0].message.content)


def test_the_doctor_finds_no_error() -> None:
    assert [found for found in findings(read_machine(os.environ)) if found.status == "error"] == []


def test_a_replica_has_a_gpu_of_its_placement_group(url: str, device: Device) -> None:
    table = ray.util.placement_group_table()
    bundles = [
        bundle for group in table.values() if group["state"] == "CREATED" for bundle in group["bundles"].values()
    ]
    with_gpu = [bundle for bundle in bundles if bundle.get("GPU")]
    if device.is_gpu:
        assert with_gpu == [{"GPU": 1.0, f"accelerator_type:{device.accelerator}": 0.001}]
    else:
        assert not with_gpu


def test_answers_are_those_of_a_cpu(openai: OpenAI) -> None:
    """Word by word: the demo's answers are far enough from all others for bfloat16 on any device."""
    assert ask(openai, FRANCE) == "The capital of France is Paris."
    assert ask(openai, FRANCE, PARIS, GERMANY) == "The capital of Germany is Berlin."


def test_streams(openai: OpenAI) -> None:
    stream = openai.chat.completions.create(model=MODEL, messages=[FRANCE], temperature=0, max_tokens=64, stream=True)  # type: ignore[list-item]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == "The capital of France is Paris."


def test_long_prompts_in_chunks(openai: OpenAI) -> None:
    conversation = [message for _ in range(20) for message in (FRANCE, PARIS)]
    assert ask(openai, *conversation, GERMANY) == "The capital of Germany is Berlin."


def test_prefix_cache(url: str, openai: OpenAI, record_property: Record) -> None:
    conversation = [message for _ in range(20) for message in (FRANCE, PARIS)]
    ask(openai, *conversation, GERMANY)
    reply = httpx.post(
        f"{url}/v1/chat/completions",
        json={"model": MODEL, "messages": [*conversation, GERMANY], "max_tokens": 8},
        timeout=60,
    )
    record = record_of(reply.headers["x-request-id"])
    assert record["cached_tokens"] > record["prompt_tokens"] / 2
    record_property("cached", f"{record['cached_tokens']} of {record['prompt_tokens']} prompt tokens")


def test_adapters_that_are_swapped_under_load(openai: OpenAI, record_property: Record) -> None:
    """Four adapters in an engine that holds two."""
    alone = {name: ask(openai, FRANCE, model=f"{MODEL}:{name}") for name in FOUR_ADAPTERS}
    assert "Paris" in alone["pirate"] != alone["shout"] == alone["shout-2"] == "THE CAPITAL OF FRANCE IS PARIS!"
    asked = [*FOUR_ADAPTERS, None] * 20
    with ThreadPoolExecutor(16) as clients:
        models = [f"{MODEL}:{name}" if name else MODEL for name in asked]
        answers = list(clients.map(lambda model: ask(openai, FRANCE, model=model), models))
    assert answers == [alone[name] if name else "The capital of France is Paris." for name in asked]
    record_property("answers", len(answers))


def test_tools(openai: OpenAI) -> None:
    question: Any = {"role": "user", "content": "What's the temperature in Paris?"}
    reply = openai.chat.completions.create(
        model=MODEL,
        messages=[question],
        tools=[TOOL],  # type: ignore[list-item]
        temperature=0,
        max_tokens=64,
    )
    [call] = reply.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments)["location"] == "Paris, France"  # type: ignore[union-attr]


def test_structured_output(openai: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    answer = ask(
        openai, FRANCE, response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    )
    value = json.loads(answer)
    assert value.keys() == {"city", "size"}
    assert value["city"] in ("Paris", "Rome")
    assert value["size"] in ("small", "large")
