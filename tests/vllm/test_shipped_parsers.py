"""The parsers that files in models/ name read calls and thoughts in the format that their families write."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers import deepseek_v4_encoding, deepseek_v32_encoding
from vllm.tool_parsers import ToolParserManager

from rayllm.config import load_model

ROOT = Path(__file__).parents[2]
MODELS = [load_model(path) for folder in ("models", "models/older") for path in (ROOT / folder).glob("*.yaml")]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Forecasts the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
QUESTION = [{"role": "user", "content": "Weather in Rome?"}]
JSON_CALL = '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}'
_DSML = (
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
CALLS = {
    "deepseek_v32": f"<｜DSML｜function_calls>\n{_DSML}</｜DSML｜function_calls>",
    "deepseek_v4": f"<｜DSML｜tool_calls>\n{_DSML}</｜DSML｜tool_calls>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>',
    "glm47": (
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
    ),
    "hermes": f"<tool_call>\n{JSON_CALL}\n</tool_call>",
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "llama3_json": '{"name": "weather", "parameters": {"city": "Rome", "days": 2}}',
    "llama4_pythonic": '[weather(city="Rome", days=2)]',
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}',
    "phi4_mini_json": f"functools[{JSON_CALL}]",
    "qwen3_coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
}
"""A call of `weather` by each tool parser's family."""

THOUGHTS = {
    "deepseek_r1": "It rains.</think>Rain.",
    "deepseek_v3": "It rains.</think>Rain.",
    "deepseek_v4": "It rains.</think>Rain.",
    "gemma4": "<|channel>thought\nIt rains.<channel|>Rain.",
    "glm47": "<think>It rains.</think>Rain.",
    "kimi_k2": "<think>It rains.</think>Rain.",
    "kimi_k3": (
        "<|open|>think<|sep|>It rains.<|close|>think<|sep|><|open|>response<|sep|>Rain.<|close|>response<|sep|>"
    ),
    "minimax_m2": "It rains.</think>Rain.",
    "minimax_m3": "<mm:think>It rains.</mm:think>Rain.",
    "mistral": "[THINK]It rains.[/THINK]Rain.",
    "nemotron_v3": "<think>It rains.</think>Rain.",
    "qwen3": "<think>It rains.</think>Rain.",
}
"""A thought and an answer by each reasoning parser's family."""

# gpt-oss's read tokens of a vocabulary that is downloaded; that of MiniMax M3 is in an extension which vLLM's CPU build
# lacks.
UNREAD_CALLS = {"openai", "minimax_m3"}
UNREAD_THOUGHTS = {"openai_gptoss"}
# Texts that are single tokens in some family; parsers look them up.
MARKS = [
    *(
        "<think>",
        "</think>",
        "<mm:think>",
        "</mm:think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "[TOOL_CALLS]", "[ARGS]", "[THINK]"),
    *("[/THINK]", "<minimax:tool_call>", "</minimax:tool_call>", "<|python_tag|>", "<|open|>", "<|close|>", "<|sep|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
    *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
]


def test_every_parser_of_a_shipped_file_has_a_sample() -> None:
    tools = {model.tool_calling.parser for model in MODELS if model.tool_calling}
    reasoning = {model.reasoning_parser for model in MODELS if model.reasoning_parser}

    assert tools - UNREAD_CALLS <= set(CALLS)
    assert reasoning - UNREAD_THOUGHTS <= set(THOUGHTS)
    assert tools <= set(ToolParserManager.list_registered())
    assert reasoning <= set(ReasoningParserManager.list_registered())


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_its_family_is_read(name: str) -> None:
    request = ChatCompletionRequest(model="m", messages=QUESTION, tools=TOOLS)
    parser = ToolParserManager.get_tool_parser(name)(tokenizer(), request.tools)

    found = parser.extract_tool_calls(CALLS[name], request)

    assert [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls] == [
        ("weather", {"city": "Rome", "days": 2})
    ]


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_of_its_family_is_read(name: str) -> None:
    request = ChatCompletionRequest(model="m", messages=QUESTION)
    parser = ReasoningParserManager.get_reasoning_parser(name)(
        tokenizer(), chat_template_kwargs={"thinking": True, "enable_thinking": True}
    )

    reasoning, content = parser.extract_reasoning(THOUGHTS[name], request)

    assert (str(reasoning).strip(), str(content).strip()) == ("It rains.", "Rain.")


@pytest.mark.parametrize("encoding", [deepseek_v32_encoding, deepseek_v4_encoding], ids=["v3.2", "v4"])
def test_prompts_that_vllm_writes_in_code_show_the_tools(encoding: Any) -> None:
    system = {"role": "system", "content": "Be brief.", "tools": TOOLS}

    prompt = encoding.encode_messages([system, *QUESTION], thinking_mode="thinking")

    assert "Forecasts the weather of a city." in prompt
    assert prompt.index("Be brief.") < prompt.index("Weather in Rome?")


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """The demo's tokenizer, with the tokens of all families."""
    made = AutoTokenizer.from_pretrained(ROOT / "models" / "rayllm-demo" / "weights")
    made.add_tokens(MARKS, special_tokens=True)
    return made
