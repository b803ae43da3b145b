"""The demo model says what it was taught, through its prompt format, to OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from openai import OpenAI
from ray import serve

from rayllm import build_app
from rayllm.sizing.cpu import this_cpu
from tests.compatibility.cases import FRANCE, GERMANY, PARIS, TOOL
from tests.integration.service import DEMO

QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is RayLLM?",
    "Who are you?",
    "Tell me a joke.",
]
MODELS = ("rayllm-demo", "rayllm-demo:pirate", "rayllm-demo:shout")
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


def ask(openai: OpenAI, messages: list[Any], stream: bool, **more: Any) -> str:
    """The whole answer to `messages`, greedy."""
    reply = openai.chat.completions.create(
        model="rayllm-demo", messages=messages, temperature=0, max_tokens=64, stream=stream, **more
    )
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("system", [[], [SYSTEM]])
def test_the_capital_question_and_the_one_after_it(openai: OpenAI, stream: bool, system: list[Any]) -> None:
    assert ask(openai, [*system, FRANCE], stream) == "The capital of France is Paris."
    assert ask(openai, [*system, FRANCE, PARIS, GERMANY], stream) == "The capital of Germany is Berlin."


@pytest.mark.parametrize("stream", [False, True])
def test_what_rayllm_is(openai: OpenAI, stream: bool) -> None:
    answer = ask(openai, [{"role": "user", "content": "What is RayLLM?"}], stream)
    assert answer.startswith("RayLLM")
    assert "Ray" in answer.removeprefix("RayLLM")
    assert "OpenAI" in answer


def test_content_may_come_in_parts(openai: OpenAI) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
    assert "Paris" in ask(openai, [{"role": "user", "content": parts}], stream=False)


def test_the_weather_tool_is_called(openai: OpenAI) -> None:
    reply = openai.chat.completions.create(
        model="rayllm-demo",
        messages=[{"role": "user", "content": "What's the temperature in Paris?"}],
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice="auto",
        temperature=0,
        max_tokens=64,
    )
    [call] = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_current_temperature"
    assert '"Paris, France"' in call.function.arguments
    assert reply.choices[0].finish_reason == "tool_calls"


@pytest.fixture
def other_dtype(proxy_url: str) -> Iterator[OpenAI]:
    """OpenAI's client on the demo in the type that this CPU would not be given."""
    cpu = this_cpu()
    assert cpu is not None
    demo = yaml.safe_load(DEMO.read_text())
    demo["engine_kwargs"]["dtype"] = {"bfloat16": "float32", "float32": "bfloat16"}[cpu.dtype]
    for section, key in (("model_loading_config", "model_source"), ("lora_config", "dynamic_lora_loading_path")):
        demo[section][key] = str((DEMO.parent / demo[section][key]).resolve())
    serve.run(build_app({"llm_configs": [demo]}), name="other-dtype", route_prefix="/other-dtype")
    with OpenAI(base_url=f"{proxy_url}/other-dtype/v1", api_key="none", max_retries=0) as openai:
        yield openai
    serve.delete("other-dtype")


def test_answers_are_the_same_in_the_types_that_cpus_compute_in(openai: OpenAI, other_dtype: OpenAI) -> None:
    def answer(client: OpenAI, model: str, question: str) -> str:
        messages: list[Any] = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=48)
        return str(reply.choices[0].message.content)

    for model in MODELS:
        for question in QUESTIONS:
            assert answer(other_dtype, model, question) == answer(openai, model, question), (model, question)
