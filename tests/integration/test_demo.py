"""The demo model says what it was taught, through its prompt format, to OpenAI's own client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.compatibility.cases import FRANCE, GERMANY, PARIS, TOOL

QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is RayLLM?",
    "Who are you?",
    "Tell me a joke.",
]
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


@pytest.mark.parametrize("adapter", ["", ":pirate"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_the_same_in_the_types_that_cpus_compute_in(openai: OpenAI, adapter: str, question: str) -> None:
    """The second model has the same weights in the other type; it has no prompt format, so both are given prompts."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"

    def answer(model: str) -> str:
        reply = openai.completions.create(
            model=model + adapter, prompt=prompt, temperature=0, max_tokens=48, stop=["<|im_end|>"]
        )
        return reply.choices[0].text

    said = answer("rayllm-demo")
    assert said
    assert answer("demo/plain:1.0") == said
