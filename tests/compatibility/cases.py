"""Requests that must be answered alike by RayLLM and by vLLM's own server on the same weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

MODEL = "rayllm-demo"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
FRANCE = {"role": "user", "content": "What is the capital of France?"}
PARIS = {"role": "assistant", "content": "The capital of France is Paris."}
GERMANY = {"role": "user", "content": "What about Germany?"}
STORY = {"role": "user", "content": "Tell me a story."}
WEATHER_QUESTION = {"role": "user", "content": "What's the temperature in Paris?"}
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PARAMETERS = {
    "type": "object",
    "properties": {
        "location": {
            "type": "string",
            "description": 'The location to get the temperature for, in the format "City, Country"',
        },
        "unit": {
            "type": "string",
            "enum": ["celsius", "fahrenheit"],
            "description": "The unit to return the temperature in.",
        },
    },
    "required": ["location", "unit"],
}
FUNCTION = {
    "name": "get_current_temperature",
    "description": "Get the current temperature at a location.",
    "parameters": PARAMETERS,
}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "get_current_temperature"}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {
        "name": "get_current_temperature",
        "arguments": '{"location": "Paris, France", "unit": "celsius"}',
    },
}
CALLED = [
    WEATHER_QUESTION,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "get_current_temperature", "content": "22.0"},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "population": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "population"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
GRAMMAR = 'root ::= "The capital is " city "."\ncity ::= "Paris" | "Berlin"'


@dataclass(frozen=True, eq=False)
class Case:
    """One request. `streams` says that it is also asked for as a stream.

    `deviation` says why RayLLM answers otherwise on purpose where vLLM answers `vllm_status`, and `other_text` why its
    text is another one.
    """

    group: str
    name: str
    path: str
    body: dict[str, Any]
    streams: bool = False
    deviation: str = ""
    vllm_status: int = 0
    other_text: str = ""


def _spaced(case: Case) -> Case:
    return replace(case, other_text="with spaces in JSON")


def _chat(group: str, name: str, streams: bool = False, messages: Any = None, **fields: Any) -> Case:
    body = {"model": MODEL, "messages": messages or [FRANCE], "temperature": 0, "max_tokens": 24, **fields}
    return Case(group, name, CHAT, body, streams)


def _completion(name: str, streams: bool = False, prompt: Any = PROMPT, **fields: Any) -> Case:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 16, **fields}
    return Case("Completions", name, COMPLETIONS, body, streams)


def _response(name: str, streams: bool = False, **fields: Any) -> Case:
    body = {"model": MODEL, "input": FRANCE["content"], "temperature": 0, "max_output_tokens": 24, **fields}
    return Case("Responses", name, RESPONSES, body, streams)


def _message(name: str, streams: bool = False, path: str = MESSAGES, **fields: Any) -> Case:
    body = {"model": MODEL, "messages": [FRANCE], "temperature": 0, "max_tokens": 24, **fields}
    return Case("Anthropic messages", name, path, body, streams)


_RESPONSE_TOOL = {"type": "function", **FUNCTION}
_ANTHROPIC_TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": PARAMETERS}

CHATS = [
    _chat("Chat", "one question", True),
    _chat("Chat", "a conversation", True, [FRANCE, PARIS, GERMANY]),
    _chat("Chat", "a system message", messages=[{"role": "system", "content": "Shout."}, FRANCE]),
    _chat("Chat", "a developer message", messages=[{"role": "developer", "content": "Shout."}, FRANCE]),
    _chat("Chat", "content in parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]),
    _chat("Chat", "named participants", messages=[{**FRANCE, "name": "ada"}]),
    _chat("Chat", "`n`", True, n=2, temperature=1, seed=5),
    _chat("Chat", "`max_completion_tokens`", True, [STORY], max_tokens=None, max_completion_tokens=7),
    _chat("Chat", "`stop` as text", True, stop=" of"),
    _chat("Chat", "`stop` as list", stop=["nothing", "Paris"]),
    _chat("Chat", "`logprobs`, `top_logprobs`", True, logprobs=True, top_logprobs=3),
    _chat("Chat", "`logit_bias`", logit_bias={"300": 5.0, "301": -100}),
    _chat("Chat", "`presence_penalty`, `frequency_penalty`", messages=[STORY], presence_penalty=1, frequency_penalty=1),
    _chat("Chat", "`seed`", True, [STORY], temperature=1.0, seed=7),
    _chat("Chat", "`stream_options.include_usage`", True, stream_options={"include_usage": True}),
    _chat("Chat", "`user`, `metadata`, `service_tier`", user="u", metadata={"a": "b"}, service_tier="auto"),
]
EXTRAS = [
    _chat("Extra parameters", "`top_k`, `min_p`", messages=[STORY], temperature=1, seed=3, top_k=5, min_p=0.1),
    _chat("Extra parameters", "`top_p`", messages=[STORY], temperature=1, seed=3, top_p=0.5),
    _chat("Extra parameters", "`repetition_penalty`", messages=[STORY], repetition_penalty=1.3),
    _chat("Extra parameters", "`use_beam_search`, `length_penalty`", n=2, use_beam_search=True, length_penalty=0.5),
    _chat("Extra parameters", "`stop_token_ids`", stop_token_ids=[300, 500]),
    _chat("Extra parameters", "`min_tokens`, `ignore_eos`", True, min_tokens=20, max_tokens=20, ignore_eos=True),
    _chat("Extra parameters", "`include_stop_str_in_output`", stop=" of", include_stop_str_in_output=True),
    _chat("Extra parameters", "`skip_special_tokens`", ignore_eos=True, skip_special_tokens=False),
    _chat("Extra parameters", "`spaces_between_special_tokens`", spaces_between_special_tokens=False),
    _chat("Extra parameters", "`bad_words`", bad_words=["Paris"]),
    _chat("Extra parameters", "`allowed_token_ids`", allowed_token_ids=[300, 301, 302], max_tokens=5),
    _chat("Extra parameters", "`prompt_logprobs`", prompt_logprobs=1, max_tokens=2),
    _chat("Extra parameters", "`truncate_prompt_tokens`", truncate_prompt_tokens=8),
    _chat("Extra parameters", "`echo`, `add_generation_prompt: false`", echo=True, add_generation_prompt=False),
    _chat(
        "Extra parameters",
        "`continue_final_message`",
        True,
        [FRANCE, {"role": "assistant", "content": "The capital of"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    _chat("Extra parameters", "`documents`", documents=[{"title": "a", "text": "b"}]),
    _chat("Extra parameters", "`chat_template_kwargs`", chat_template_kwargs={"unused": 1}),
    _chat("Extra parameters", "`chat_template` without trust", chat_template="{{ messages[0].content }}"),
    replace(
        _chat("Extra parameters", "`priority`", priority=3),
        deviation="the model's file must allow it",
        vllm_status=200,
    ),
    _chat("Extra parameters", "`return_token_ids`", True, return_token_ids=True),
    _chat("Extra parameters", "`return_tokens_as_token_ids`", logprobs=True, return_tokens_as_token_ids=True),
    _chat("Extra parameters", "`logprob_token_ids`", logprobs=True, logprob_token_ids=[300, 301]),
    _chat("Extra parameters", "`cache_salt`", cache_salt="pepper"),
    _chat("Extra parameters", "an unknown field", nobody_knows=1),
]
STRUCTURED = [
    _spaced(
        _chat("Structured output", "`response_format: json_object`", True, response_format={"type": "json_object"})
    ),
    _spaced(
        _chat("Structured output", "`response_format: json_schema`", True, response_format=JSON_SCHEMA, max_tokens=48)
    ),
    _chat("Structured output", "`response_format: text`", response_format={"type": "text"}),
    _spaced(_chat("Structured output", "`json`", structured_outputs={"json": SCHEMA}, max_tokens=48)),
    _chat("Structured output", "`choice`", True, structured_outputs={"choice": ["positive", "negative"]}),
    _chat("Structured output", "`regex`", True, structured_outputs={"regex": r"[A-Z][a-z]{2,8}\.[0-9]{3}"}),
    _chat("Structured output", "`grammar`", True, structured_outputs={"grammar": GRAMMAR}),
    _chat("Structured output", "two constraints", structured_outputs={"regex": "a", "choice": ["a"]}),
    _chat("Structured output", "a broken schema", structured_outputs={"json": {"type": "nothing"}}),
    _chat("Structured output", "a broken regex", structured_outputs={"regex": "("}),
]
TOOLS = [
    _chat("Tools", "`auto`", True, [WEATHER_QUESTION], tools=[TOOL], tool_choice="auto", max_tokens=64),
    _chat("Tools", "`auto` by default", messages=[WEATHER_QUESTION], tools=[TOOL], max_tokens=64),
    _chat("Tools", "`required`", True, [WEATHER_QUESTION], tools=[TOOL], tool_choice="required", max_tokens=64),
    _chat("Tools", "a named function", True, [WEATHER_QUESTION], tools=[TOOL], tool_choice=NAMED, max_tokens=64),
    _chat("Tools", "`none`", True, tools=[TOOL], tool_choice="none"),
    _chat(
        "Tools", "`parallel_tool_calls: false`", messages=[WEATHER_QUESTION], tools=[TOOL], parallel_tool_calls=False
    ),
    _chat("Tools", "the tool's result", True, CALLED, tools=[TOOL]),
    _chat("Tools", "a function that is not offered", tools=[TOOL], tool_choice={**NAMED, "function": {"name": "x"}}),
    _chat("Tools", "no tools at all", tools=[]),
]
COMPLETION_CASES = [
    _completion("a text", True),
    _completion("several texts", True, [PROMPT, "Hello"]),
    _completion("token ids", True, [0, 300, 301]),
    _completion("several lists of token ids", False, [[0, 300], [0, 301, 302]]),
    _completion("`echo`, `logprobs`", True, echo=True, logprobs=2),
    _completion("`echo` and no tokens, as `lm_eval` asks", echo=True, logprobs=1, max_tokens=0),
    _completion("`logprobs`", True, logprobs=5),
    _completion("`n`, `seed`", True, "Once", n=3, temperature=1, seed=1),
    _completion("`stop`", stop=["Paris"]),
    _completion("`suffix`", suffix="x"),
    _completion("`prompt_logprobs`", prompt_logprobs=0),
    _completion("`add_special_tokens: false`", add_special_tokens=False),
    _spaced(_completion("`response_format`", response_format=JSON_SCHEMA, max_tokens=48)),
    _completion("`structured_outputs`", structured_outputs={"choice": ["yes", "no"]}),
    _completion("no prompt", prompt=None),
    _completion("an empty prompt", prompt=""),
    replace(_completion("`best_of`", best_of=3), deviation="vLLM ignores it", vllm_status=200),
]
RESPONSE_CASES = [
    _response("a text", True),
    _response("messages and `instructions`", True, input=[FRANCE], instructions="Shout."),
    _spaced(_response("`text.format`", True, text={"format": {"type": "json_schema", "name": "c", "schema": SCHEMA}})),
    _response("a function", True, input=WEATHER_QUESTION["content"], tools=[_RESPONSE_TOOL], max_output_tokens=64),
    _response("`store: false`", store=False),
    _response("`top_logprobs`", include=["message.output_text.logprobs"], top_logprobs=2),
    _response("`stop`", stop=["Paris"]),
    replace(_response("`store: true`", store=True), deviation="nothing is stored", vllm_status=200),
]
MESSAGE_CASES = [
    _message("a question", True),
    _message("a system text", True, system="Shout."),
    _message("`stop_sequences`", stop_sequences=["Paris"]),
    _message("a tool", True, messages=[WEATHER_QUESTION], tools=[_ANTHROPIC_TOOL], max_tokens=64),
    _message("`top_k`, `top_p`", top_k=3, top_p=0.9),
    _message("no `max_tokens`", max_tokens=None),
    _message("counting tokens", path="/v1/messages/count_tokens"),
]
OTHERS = [
    Case("Tokens", "a text", "/tokenize", {"model": MODEL, "prompt": "Hello", "return_token_strs": True}),
    Case("Tokens", "a conversation", "/tokenize", {"model": MODEL, "messages": [FRANCE, PARIS]}),
    Case("Tokens", "back to text", "/detokenize", {"model": MODEL, "tokens": [300, 301, 302]}),
    Case("Tokens", "a batch of conversations", "/v1/chat/completions/batch", {
        "model": MODEL, "messages": [[FRANCE], [FRANCE, PARIS, GERMANY]], "temperature": 0, "max_tokens": 16,
    }),
    Case("Adapters", "by name", CHAT, {
        "model": f"{MODEL}:pirate", "messages": [FRANCE], "temperature": 0, "max_tokens": 32,
    }, True),
    Case("Adapters", "unknown", CHAT, {"model": "nobody", "messages": [FRANCE]}),
]  # fmt: skip
# Each wrong in one field: the status must be the same, and ours names the field.
WRONG: dict[str, Any] = {
    "messages": "hello",
    "temperature": -1,
    "top_p": 2,
    "top_k": -7,
    "min_p": 3,
    "n": 0,
    "max_tokens": -5,
    "presence_penalty": 9,
    "frequency_penalty": "much",
    "repetition_penalty": 0,
    "logprobs": "perhaps",
    "top_logprobs": 10_000,
    "logit_bias": {"x": 1},
    "stop": [1, 2],
    "seed": "seven",
    "stream": "perhaps",
    "stream_options": {"include_usage": True},
    "response_format": {"type": "nonsense"},
    "structured_outputs": {"nonsense": 1},
    "tools": [{"type": "function"}],
    "tool_choice": "sometimes",
    "min_tokens": 1_000_000,
    "prompt_logprobs": -3,
    "truncate_prompt_tokens": -9,
    "allowed_token_ids": [],
    "stop_token_ids": [10_000_000],
    "priority": "high",
    "chat_template_kwargs": [],
    "add_generation_prompt": True,
}
AT_ODDS = {"add_generation_prompt": {"continue_final_message": True}, "tool_choice": {"tools": [TOOL]}}
ERRORS = [
    _chat("Wrong fields", f"`{field}`", **{field: value, **AT_ODDS.get(field, {})})
    if field != "messages"
    else Case("Wrong fields", "`messages`", CHAT, {"model": MODEL, "messages": value})
    for field, value in WRONG.items()
]
CASES = [
    *CHATS, *EXTRAS, *STRUCTURED, *TOOLS, *COMPLETION_CASES, *RESPONSE_CASES, *MESSAGE_CASES, *OTHERS, *ERRORS,
]  # fmt: skip
