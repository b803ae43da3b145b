"""What a chat template for tool calling writes for an assistant's calls is what vLLM's parser of its name reads."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest as MistralRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.hf import _detect_content_format
from vllm.tool_parsers import ToolParserManager

from rayllm.config.vllm_versions import current_series
from rayllm.prompt import render
from rayllm.prompt.tool_templates import names, read

ROOT = Path(__file__).parents[2]

Call = tuple[str, dict[str, Any]]

# What ends the assistant's turn: the engine stops there, and the parser does not see it.
ENDS = {
    "granite": "<|end_of_text|>\n",
    "granite-20b-fc": "\n",
    "hermes": "<|im_end|>\n",
    "internlm": "<|im_end|>\n",
    "jamba": "<|eom|>",
    "llama3_json": "<|eot_id|>",
    "mistral": "</s>",
    "phi4_mini_json": "<|end|>",
    "pythonic": "<|eot_id|>",
    "xlam": "<|eot_id|>",
}
# Tokens that a parser wants in the vocabulary.
MARKERS = {
    "jamba": ["<tool_calls>", "</tool_calls>"],
    "llama3_json": ["<|python_tag|>"],
    "mistral": ["[TOOL_CALLS]"],
}
ONE_CALL_ONLY = {"internlm"}
NO_NEGATIVE_NUMBERS = ("0.26", "0.27")
NO_LISTS = {"phi4_mini_json"}  # its parser takes the first closing bracket for the end of the calls

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "send")
]
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome?"}]
ROME: Call = ("weather", {"city": "Rome", "days": 2})
CALLS: list[Call] = [
    ROME,
    ("weather", {}),
    ("weather", {"where": {"city": "Rome", "at": {"x": -2.5}}, "now": True, "later": False, "unit": None}),
    ("send", {"text": 'He said: "it\'s {{ 7*7 }}",\n\\n {% if %} été 😀 \t</b>'}),
]


@pytest.mark.parametrize("family", names())
@pytest.mark.parametrize("call", CALLS, ids=["plain", "empty", "nested", "text"])
def test_one_call_comes_back(family: str, call: Call) -> None:
    if family == "pythonic" and current_series() in NO_NEGATIVE_NUMBERS and "where" in call[1]:
        pytest.skip("this vLLM's parser takes no negative numbers")
    assert parsed(family, answer(family, call)) == [call]


@pytest.mark.parametrize("family", sorted(set(names()) - NO_LISTS))
def test_a_list_comes_back(family: str) -> None:
    call: Call = ("weather", {"cities": ["Rome", ["Bern"], {"near": [1, 2]}], "days": []})

    assert parsed(family, answer(family, call)) == [call]


@pytest.mark.parametrize("family", sorted(set(names()) - ONE_CALL_ONLY))
def test_two_parallel_calls_come_back(family: str) -> None:
    calls = [ROME, ("send", {"text": "Now."})]

    assert parsed(family, answer(family, *calls)) == calls


@pytest.mark.parametrize("family", names())
def test_words_are_no_call(family: str) -> None:
    assert parsed(family, "It is warm.") == []


@pytest.mark.parametrize("family", names())
def test_vllm_hands_over_contents_as_text(family: str) -> None:
    assert _detect_content_format(read(family), default="openai") == "string"


def test_every_name_is_a_parser() -> None:
    assert set(names()) <= set(ToolParserManager.list_registered())


def test_mistral_is_what_mistral_writes() -> None:
    """The reference is Mistral's own encoder, which makes tokens and shows them as text."""
    reference = MistralTokenizer.from_file(
        str(files("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3")
    )
    calls = {
        "role": "assistant",
        "content": "",
        "tool_calls": [as_openai(0, ROME, "abcdefgh0"), as_openai(1, ("send", {"text": "Now."}), "abcdefgh1")],
    }
    results = [
        {"role": "tool", "tool_call_id": "abcdefgh0", "content": '{"celsius": 22}'},
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": "sent\n"},
    ]
    greeting = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    tools = [{"type": "function", "function": {"description": "Words.", **tool["function"]}} for tool in TOOLS]
    system, question = QUESTION
    for chat, offered in (
        ([system, *greeting, question], None),
        ([system, *greeting, question], tools),
        ([system, *greeting, question, calls, *results], tools),
    ):
        request = MistralRequest(messages=chat, tools=offered, model="m")
        theirs = reference.encode_chat_completion(request).text

        ours = render(str(read("mistral")), chat, tools=offered, bos_token="<s>", eos_token="</s>")

        assert ours == str(theirs).replace("▁", " ").replace("<0x0A>", "\n")


def answer(family: str, *calls: Call) -> str:
    """What the model would have said to make these calls, as the template writes it afterwards."""
    template = read(family)
    assert template is not None
    message = {"role": "assistant", "tool_calls": [as_openai(index, call) for index, call in enumerate(calls)]}
    variables: dict[str, Any] = {"tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>", "date_string": "today"}
    before = render(template, QUESTION, **variables)
    after = render(template, [*QUESTION, message], add_generation_prompt=False, **variables)
    assert after.startswith(before)
    assert after.endswith(ENDS[family])
    return after.removeprefix(before).removesuffix(ENDS[family])


def as_openai(index: int, call: Call, call_id: str = "") -> dict[str, Any]:
    name, arguments = call
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id or f"chatcmpl-tool-{index:016x}", "type": "function", "function": function}


def parsed(family: str, text: str) -> list[Call]:
    """The calls that vLLM's parser finds in the text of an answer."""
    request = ChatCompletionRequest(model="m", messages=QUESTION, tools=TOOLS)
    parser = ToolParserManager.get_tool_parser(family)(tokenizer(family), request.tools)
    found = parser.extract_tool_calls(text, request)
    return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]


@cache
def tokenizer(family: str) -> PreTrainedTokenizerBase:
    """The demo model's tokenizer, with the tokens that the family's parser looks up."""
    made = AutoTokenizer.from_pretrained(ROOT / "models" / "rayllm-demo" / "weights")
    made.add_tokens(MARKERS.get(family, []), special_tokens=True)
    return made
