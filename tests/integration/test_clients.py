"""Clients as people install them: OpenAI's and Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai as openai_package
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.compatibility.cases import FUNCTION, PARAMETERS
from tests.integration.service import Service

MODEL = "rayllm-demo"
FRANCE: Any = {"role": "user", "content": "What is the capital of France?"}
# Anthropic's client has dropped the parameter; the API has not.
GREEDY: Any = {"extra_body": {"temperature": 0}}
WEATHER: Any = {"role": "user", "content": "What's the temperature in Paris?"}


@pytest.fixture(scope="module")
def claude(service: Service) -> anthropic.Anthropic:
    """Anthropic's client on the application."""
    return anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0)


class City(BaseModel):
    """What an answer is parsed into."""

    name: str = Field(max_length=12)
    size: int = Field(ge=0, le=99)


def test_openai_parses_an_answer_into_a_class(openai: OpenAI) -> None:
    reply = openai.chat.completions.parse(
        model=MODEL, messages=[FRANCE], response_format=City, max_tokens=200, temperature=0.5, seed=1
    )
    assert isinstance(reply.choices[0].message.parsed, City)


def test_openai_streams_by_events(openai: OpenAI) -> None:
    with openai.chat.completions.stream(model=MODEL, messages=[FRANCE], temperature=0, max_tokens=32) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == "The capital of France is Paris."


def test_openai_takes_extras_in_extra_body(openai: OpenAI) -> None:
    reply = openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Classify this sentiment: vLLM is wonderful!"}],
        extra_body={"guided_choice": ["positive", "negative"]},
        temperature=0,
    )
    assert reply.choices[0].message.content == "positive"


def test_openai_responses(openai: OpenAI) -> None:
    reply = openai.responses.create(model=MODEL, input="What is the capital of France?", temperature=0)
    assert reply.output_text == "The capital of France is Paris."
    assert reply.usage is not None
    assert reply.usage.output_tokens > 3
    events = list(openai.responses.create(model=MODEL, input=[FRANCE], temperature=0, stream=True))
    assert events[-1].type == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == reply.output_text


def test_openai_responses_call_functions(openai: OpenAI) -> None:
    tool: Any = {"type": "function", "strict": True, **FUNCTION}
    reply = openai.responses.create(model=MODEL, input=WEATHER["content"], tools=[tool], temperature=0)
    [call] = [item for item in reply.output if item.type == "function_call"]
    assert call.name == "get_current_temperature"
    assert json.loads(call.arguments)["location"] == "Paris, France"


def test_openai_says_that_responses_are_not_stored(openai: OpenAI) -> None:
    with pytest.raises(openai_package.NotFoundError, match="stores no responses"):
        openai.responses.retrieve("resp_1")
    with pytest.raises(openai_package.NotFoundError, match="stores no responses"):
        openai.responses.cancel("resp_1")
    for field in ({"previous_response_id": "resp_1"}, {"store": True}, {"background": True}):
        with pytest.raises(openai_package.BadRequestError) as caught:
            openai.responses.create(model=MODEL, input="x", **field)  # type: ignore[call-overload]
        assert caught.value.param == next(iter(field))


def test_openais_errors_carry_the_field(openai: OpenAI) -> None:
    with pytest.raises(openai_package.BadRequestError) as caught:
        openai.chat.completions.create(model=MODEL, messages=[FRANCE], top_p=7)
    assert (caught.value.param, caught.value.type) == ("top_p", "invalid_request_error")
    with pytest.raises(openai_package.NotFoundError) as missing:
        openai.chat.completions.create(model="nobody", messages=[FRANCE])
    assert missing.value.code == "model_not_found"


def test_anthropic_answers(claude: anthropic.Anthropic) -> None:
    reply = claude.messages.create(model=MODEL, messages=[FRANCE], max_tokens=32, **GREEDY)
    [block] = reply.content
    assert block.type == "text"
    assert block.text == "The capital of France is Paris."
    assert (reply.stop_reason, reply.model) == ("end_turn", MODEL)
    assert reply.usage.output_tokens > 3


def test_anthropic_streams(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(
        model=MODEL, messages=[FRANCE], max_tokens=32, system="You are a helpful assistant.", **GREEDY
    ) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == "The capital of France is Paris."
    assert final.stop_reason == "end_turn"


def test_anthropic_uses_tools_to_the_end(claude: anthropic.Anthropic) -> None:
    tool: Any = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": PARAMETERS}
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "tools": [tool], **GREEDY}
    first = claude.messages.create(messages=[WEATHER], **options)
    [use] = [block for block in first.content if block.type == "tool_use"]
    assert use.input == {"location": "Paris, France", "unit": "celsius"}
    assert first.stop_reason == "tool_use"
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "22.0"}
    turns: Any = [WEATHER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = claude.messages.create(messages=turns, **options)
    assert "22.0" in str(last.content[0])


def test_anthropic_counts_tokens_and_tells_errors(claude: anthropic.Anthropic) -> None:
    assert claude.messages.count_tokens(model=MODEL, messages=[FRANCE]).input_tokens > 5
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="nobody", messages=[FRANCE], max_tokens=3)
    body: Any = missing.value.body
    assert (body["type"], body["error"]["code"]) == ("error", "model_not_found")
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model=MODEL, messages=[FRANCE], max_tokens=3, extra_body={"temperature": -1})
