"""What the chat templates for tool calling render, family by family, after the format each family published."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from strategies import content
from transformers.utils.chat_template_utils import _get_template_variables, render_jinja_template

from rayllm.prompt import PromptError, render
from rayllm.prompt.tool_templates import names, read

Messages = list[dict[str, Any]]

ID = "chatcmpl-tool-0123456789abcdef"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Weather <b>now</b>", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
# The tool as it stands in prompts: as it is, as a bare function, and each over several lines.
FUNCTION = (
    '{"name": "weather", "description": "Weather <b>now</b>", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}'
)
TOOL = '{"type": "function", "function": ' + FUNCTION + "}"
FUNCTION_LINES = """\
{
    "name": "weather",
    "description": "Weather <b>now</b>",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {
                "type": "string"
            }
        }
    }
}"""
FUNCTION_LIST = "[\n" + "\n".join("    " + line for line in FUNCTION_LINES.splitlines()) + "\n]"
TOOL_LINES = (
    '{\n    "type": "function",\n    "function": '
    + "\n".join(["{", *("    " + line for line in FUNCTION_LINES.splitlines()[1:])])
    + "\n}"
)


def s(words: Any) -> dict[str, Any]:
    return {"role": "system", "content": words}


def u(words: Any) -> dict[str, Any]:
    return {"role": "user", "content": words}


def a(words: Any, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": words} | ({"tool_calls": list(calls)} if calls else {})


def t(words: Any, call_id: str = ID) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": words}


def call(arguments: Any, name: str = "weather", call_id: str = ID) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def prompt(family: str, *chat: dict[str, Any], **options: Any) -> str:
    defaults = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "21 September 2024"}
    template = read(family)
    assert template is not None
    return render(template, chat, **(defaults | options))


PLAIN = [s("Be brief."), u("Hi"), a("Hello!"), u("Bye")]
TOOL_CHAT = [s("Be brief."), u("Weather in Rome?"), a(None, call({"city": "Rome"})), t('{"celsius": 22}')]

_XLAM_RULES = (
    "You have access to a set of tools. When using tools, make calls in a single JSON array: \n\n"
    '[{"name": "tool_call_name", "arguments": {"arg1": "value1", "arg2": "value2"}}, ... (additional parallel '
    "tool calls "
    "as needed)]\n\nIf no tool is suitable, state that explicitly. If the user's input lacks required "
    "parameters, ask for "
    "clarification. Do not interpret or respond until tool results are returned. Once they are available, process them "
    "or make additional calls if needed. For tasks that don't require tools, such as casual conversation or general "
    "advice, respond directly in plain text. The available tools are:\n\n"
)
_PYTHONIC_RULES = (
    "You are an expert in composing functions. You are given a question and a set of possible functions.\n"
    "Based on the question, you will need to make one or more function/tool calls to achieve the purpose.\n"
    "If none of the function can be used, point it out. If the given question lacks the parameters required by the "
    "function,\nalso point it out. You should only return the function call in tools call sections.\n\n"
    "If you decide to invoke any of the function(s), you MUST put it in the format of "
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]\n"
    "You SHOULD NOT include any other text in the response.\n\n"
    "Here is a list of functions in JSON format that you can invoke.\n\n"
)
_HERMES_RULES = (
    "You are a function calling AI model. You are provided with function signatures within <tools></tools> XML "
    "tags. You "
    "may call one or more functions to assist with the user query. Don't make assumptions about what values to "
    "plug into "
    "functions. Here are the available tools: <tools> "
    + TOOL
    + " </tools> Use the following pydantic model json schema "
    'for each tool call you will make: {"properties": {"name": {"title": "Name", "type": "string"}, "arguments": '
    '{"title": "Arguments", "type": "object"}}, "required": ["name", "arguments"], "title": "FunctionCall", "type": '
    '"object"}\nFor each function call return a json object with function name and arguments within <tool_call>'
    '</tool_call> XML tags as follows:\n<tool_call>\n{"name": <function-name>, "arguments": <args-dict>}\n</tool_call>'
)

TOOL_GOLDENS = {
    "hermes": (
        f"<s><|im_start|>system\n{_HERMES_RULES}<|im_end|>\n"
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": '
        '"Rome"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>tool\n<tool_response>\n{"celsius": 22}\n</tool_response>\n<|im_end|>\n'
        "<|im_start|>assistant\n"
    ),
    "mistral": (
        f"<s>[AVAILABLE_TOOLS] [{TOOL}][/AVAILABLE_TOOLS]"
        "[INST] Be brief.\n\nWeather in Rome?[/INST]"
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}, "id": "789abcdef"}]</s>'
        '[TOOL_RESULTS] {"content": {"celsius": 22}, "call_id": "789abcdef"}[/TOOL_RESULTS]'
    ),
    "llama3_json": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n\nCutting Knowledge Date: "
        "December 2023\n"
        "Today Date: 21 September 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnswer the user's question by making use of the following "
        "functions "
        "if needed.\nIf none of the function can be used, please say so.\nHere is a list of functions in JSON format:\n"
        f"{TOOL_LINES}\n\n"
        'Return function calls in JSON format: {"name": function name, "parameters": dictionary of argument name '
        "and its "
        "value}. Do not use variables.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWeather in Rome?<|eot_id|>"
        '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "weather", "parameters": {"city": "Rome"}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n{"celsius": 22}<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "pythonic": (
        f"<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.\n\n{_PYTHONIC_RULES}{FUNCTION_LIST}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWeather in Rome?<|eot_id|>"
        '<|start_header_id|>assistant<|end_header_id|>\n\n[weather(city="Rome")]<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n{"celsius": 22}<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "xlam": (
        f"<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.\n{_XLAM_RULES}{FUNCTION_LINES}\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWeather in Rome?<|eot_id|>"
        '<|start_header_id|>assistant<|end_header_id|>\n\n[{"name": "weather", "arguments": {"city": '
        '"Rome"}}]<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n{"celsius": 22}<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "granite": (
        f"<|start_of_role|>available_tools<|end_of_role|>\n{TOOL_LINES}<|end_of_text|>\n"
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Weather in Rome?<|end_of_text|>\n"
        '<|start_of_role|>assistant<|end_of_role|><|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}]'
        "<|end_of_text|>\n"
        '<|start_of_role|>tool_response<|end_of_role|>{"celsius": 22}<|end_of_text|>\n'
        "<|start_of_role|>assistant<|end_of_role|>"
    ),
    "granite-20b-fc": (
        f"SYSTEM: Be brief.\n<|function_call_library|>\n{FUNCTION}\n\n"
        "If none of the functions are relevant or the given question lacks the parameters required by the function, "
        'please output "<function_call> {"name": "no_function", "arguments": {}}".\n\n'
        "USER: Weather in Rome?\n"
        'ASSISTANT: <function_call> {"name": "weather", "arguments": {"city": "Rome"}}\n'
        'FUNCTION RESPONSE: {"celsius": 22}\n'
        "ASSISTANT:"
    ),
    "internlm": (
        "<s><|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>system name=<|plugin|>\n{FUNCTION_LIST}<|im_end|>\n"
        "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
        "<|im_start|>assistant\n<|action_start|><|plugin|>\n"
        '{"name": "weather", "parameters": {"city": "Rome"}}<|action_end|><|im_end|>\n'
        '<|im_start|>environment name=<|plugin|>\n{"celsius": 22}<|im_end|>\n'
        "<|im_start|>assistant\n"
    ),
    "jamba": (
        "<s><|bom|><|system|> Be brief.\n\n<tool_definitions>\n# Tools\n\n## Functions\n\n"
        f"{FUNCTION_LINES.replace('    ', '  ')}\n</tool_definitions><|eom|>"
        "<|bom|><|user|> Weather in Rome?<|eom|>"
        '<|bom|><|assistant|> <tool_calls>[\n    {"name": "weather", "arguments": {"city": '
        '"Rome"}}\n]</tool_calls><|eom|>'
        '<|bom|><|tool|> {"celsius": 22}<|eom|>'
        "<|bom|><|assistant|>"
    ),
    "phi4_mini_json": (
        "<|system|>Be brief.\n\nAnswer in plain text where you know the answer. Where a function can find it, "
        "answer with "
        "function calls only, all in one JSON list after the word functools: "
        'functools[{"name": function name, "arguments": object of argument names and values}, ...]. '
        f"Use only the functions and arguments that are given.\n<|tool|>[{FUNCTION}]<|/tool|><|end|>"
        "<|user|>Weather in Rome?<|end|>"
        '<|assistant|>functools[{"name": "weather", "arguments": {"city": "Rome"}}]<|end|>'
        '<|tool_response|>{"celsius": 22}<|end|>'
        "<|assistant|>"
    ),
}

_LLAMA_3 = (
    "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
_CHATML = (
    "<s><|im_start|>system\nBe "
    "brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
)
PLAIN_GOLDENS = {
    "hermes": _CHATML,
    "internlm": _CHATML,
    "llama3_json": _LLAMA_3,
    "pythonic": _LLAMA_3,
    "xlam": _LLAMA_3,
    "mistral": "<s>[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\nBye[/INST]",
    "granite": (
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>Hello!<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Bye<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
    ),
    "granite-20b-fc": "SYSTEM: Be brief.\n\nUSER: Hi\nASSISTANT: Hello!\nUSER: Bye\nASSISTANT:",
    "jamba": (
        "<s><|bom|><|system|> Be brief.<|eom|><|bom|><|user|> Hi<|eom|><|bom|><|assistant|> Hello!<|eom|>"
        "<|bom|><|user|> Bye<|eom|><|bom|><|assistant|>"
    ),
    "phi4_mini_json": "<|system|>Be "
    "brief.<|end|><|user|>Hi<|end|><|assistant|>Hello!<|end|><|user|>Bye<|end|><|assistant|>",
}

# The assistant's part of a turn with two calls, and the two results after it.
PARALLEL = [a(None, call({"city": "Rome"}), call({}, "time", "call_2")), t("22"), t("noon", "call_2")]
PARALLEL_GOLDENS = {
    "hermes": (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\n22\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\n<|im_end|>\n"
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}, "id": "789abcdef"}, '
        '{"name": "time", "arguments": {}, "id": "000call_2"}]</s>'
        '[TOOL_RESULTS] {"content": "22", "call_id": "789abcdef"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS] {"content": "noon", "call_id": "000call_2"}[/TOOL_RESULTS]'
    ),
    "llama3_json": (
        '{"name": "weather", "parameters": {"city": "Rome"}}; {"name": "time", "parameters": {}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n22<|eot_id|>"
        "<|start_header_id|>ipython<|end_header_id|>\n\nnoon<|eot_id|>"
    ),
    "pythonic": (
        '[weather(city="Rome"), time()]<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n22<|eot_id|>"
        "<|start_header_id|>ipython<|end_header_id|>\n\nnoon<|eot_id|>"
    ),
    "xlam": (
        '[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "time", "arguments": {}}]<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\n22<|eot_id|>"
        "<|start_header_id|>ipython<|end_header_id|>\n\nnoon<|eot_id|>"
    ),
    "granite": (
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "time", "arguments": {}}]'
        "<|end_of_text|>\n"
        "<|start_of_role|>tool_response<|end_of_role|>22<|end_of_text|>\n"
        "<|start_of_role|>tool_response<|end_of_role|>noon<|end_of_text|>\n"
    ),
    "granite-20b-fc": (
        ' <function_call> {"name": "weather", "arguments": {"city": "Rome"}}'
        ' <function_call> {"name": "time", "arguments": {}}\n'
        "FUNCTION RESPONSE: 22\nFUNCTION RESPONSE: noon\n"
    ),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "Rome"}}<|action_end|>'
        '<|action_start|><|plugin|>\n{"name": "time", "parameters": {}}<|action_end|><|im_end|>\n'
        "<|im_start|>environment name=<|plugin|>\n22<|im_end|>\n<|im_start|>environment "
        "name=<|plugin|>\nnoon<|im_end|>\n"
    ),
    "jamba": (
        ' <tool_calls>[\n    {"name": "weather", "arguments": {"city": "Rome"}},\n    {"name": "time", '
        '"arguments": {}}\n]'
        "</tool_calls><|eom|><|bom|><|tool|> 22<|eom|><|bom|><|tool|> noon<|eom|>"
    ),
    "phi4_mini_json": (
        'functools[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "time", "arguments": {}}]<|end|>'
        "<|tool_response|>22<|end|><|tool_response|>noon<|end|>"
    ),
}

# Systems that a family adds by itself: with tools, and without.
DEFAULT_SYSTEMS = [
    ("llama3_json", TOOLS, "Today Date: 21 September 2024\n\nYou are a helpful assistant.<|eot_id|>"),
    (
        "xlam",
        TOOLS,
        "You are a helpful assistant that can use tools. You are developed by Salesforce xLAM team.\nYou have",
    ),
    (
        "xlam",
        None,
        "You are a helpful assistant that can use tools. You are developed by Salesforce xLAM team.<|eot_id|>",
    ),
    (
        "granite",
        TOOLS,
        "<|start_of_role|>system<|end_of_role|>You are a helpful assistant with access to the following function "
        "calls. "
        "Your task is to produce a list of function calls necessary to generate response to the user utterance. "
        "Use the "
        "following function calls as required.<|end_of_text|>",
    ),
    (
        "granite-20b-fc",
        TOOLS,
        "SYSTEM: You are a helpful assistant with access to the following function calls. Your task is to produce a "
        "sequence of function calls necessary to generate response to the user utterance. Use the following function "
        "calls as required.\n<|function_call_library|>",
    ),
    ("jamba", None, "<s><|bom|><|system|> <|eom|><|bom|><|user|> Hi<|eom|>"),
    ("phi4_mini_json", TOOLS, "<|system|>You are a helpful assistant with some tools.\n"),
    ("pythonic", TOOLS, "<s><|start_header_id|>system<|end_header_id|>\n\nYou are an expert in composing functions."),
]

STRIPPING = ("llama3_json", "pythonic", "xlam")

each = pytest.mark.parametrize("family", names())


def test_every_family_has_its_goldens() -> None:
    assert set(names()) == set(TOOL_GOLDENS) == set(PLAIN_GOLDENS) == set(PARALLEL_GOLDENS)


def test_an_unknown_name_has_no_template() -> None:
    for name in ("", "nonesuch", "../template", "__init__", "hermes.jinja", "HERMES"):
        assert read(name) is None


def test_reading_them_imports_no_engine() -> None:
    script = (
        "import sys; from rayllm.prompt.tool_templates import names, read; assert all(map(read, names()));"
        "sys.exit(', '.join({'vllm', 'torch', 'transformers', 'ray', 'jinja2'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@each
def test_a_conversation_with_a_tool(family: str) -> None:
    assert prompt(family, *TOOL_CHAT, tools=TOOLS) == TOOL_GOLDENS[family]


@each
def test_without_tools_it_is_the_family_s_plain_chat(family: str) -> None:
    assert prompt(family, *PLAIN) == PLAIN_GOLDENS[family]


@each
def test_parallel_calls_and_their_results(family: str) -> None:
    question = TOOL_CHAT[:2]
    before = prompt(family, *question, tools=TOOLS)

    whole = prompt(family, *question, *PARALLEL, tools=TOOLS, add_generation_prompt=False)

    assert whole == before + PARALLEL_GOLDENS[family]


@each
def test_words_beside_a_call_come_first(family: str) -> None:
    chat = [u("Hi"), a("Let me see.", call({"city": "Rome"}))]

    answer = prompt(family, *chat, tools=TOOLS).removeprefix(prompt(family, *chat[:1], tools=TOOLS))

    assert answer.index("Let me see.") < answer.index("Rome")


@each
def test_transformers_renders_the_same(family: str) -> None:
    variables = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "21 September 2024"}

    rendered, _ = render_jinja_template(
        [TOOL_CHAT], tools=TOOLS, chat_template=read(family), add_generation_prompt=True, **variables
    )

    assert rendered == [TOOL_GOLDENS[family]]


@each
def test_it_is_given_no_variable_that_vllm_lacks(family: str) -> None:
    wanted = _get_template_variables(read(family))

    assert wanted <= {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "date_string"} | {
        "raise_exception",
        "strftime_now",
        "namespace",
    }


@each
def test_arguments_may_come_as_text(family: str) -> None:
    given = {} if family == "pythonic" else {"city": "Rome"}
    texts = []
    for arguments in (given, json.dumps(given)):
        chat = [u("Hi"), a(None, call(arguments))]
        rendered, _ = render_jinja_template([chat], tools=TOOLS, chat_template=read(family), date_string="today")
        texts += rendered

    assert texts[0] == texts[1]


@each
def test_a_call_without_arguments_has_an_empty_object(family: str) -> None:
    texts = {prompt(family, u("Hi"), a(None, call(arguments))) for arguments in (None, "", "{}", {})}

    assert len(texts) == 1


@each
def test_content_may_come_as_parts(family: str) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat = [s(parts), u(parts), a(parts), t(parts), u(parts)]
    joined = [message | {"content": "one\ntwo"} for message in chat]

    assert prompt(family, *chat) == prompt(family, *joined)


@each
def test_parts_that_are_no_text_are_refused(family: str) -> None:
    with pytest.raises(PromptError, match="renders text only"):
        prompt(family, u([{"type": "image_url", "image_url": {"url": "data:,"}}]))


@each
@settings(max_examples=30)
@given(words=content)
def test_content_stays_literal(family: str, words: str) -> None:
    words = f"<{words}>"  # of a turn's ends only, some families strip white space
    chat = [s(words), u(words), a(words), u("Next"), a(None, call({"city": words})), t(words)]

    rendered = prompt(family, *chat, tools=TOOLS)

    # Mistral has the result within JSON, and so has everyone the argument.
    assert rendered.count(words) >= (3 if family == "mistral" else 4)
    assert json.dumps(words, ensure_ascii=False) in rendered


@each
def test_jinja_in_content_does_not_run(family: str) -> None:
    trap = "{{ 7*7 }}{% for x in messages %}{# no #}"

    assert trap in prompt(family, s(trap), u("Hi"))
    assert trap in prompt(family, u(trap))
    assert trap in prompt(family, u("Hi"), a(None, call({})), t(trap))


@each
@pytest.mark.parametrize("role", ["function", "ipython", ""])
def test_an_unknown_role_is_refused(family: str, role: str) -> None:
    with pytest.raises(PromptError, match=f"The role '{role}' is not supported: this chat template knows system, "):
        prompt(family, u("Hi"), {"role": role, "content": "x"})


@each
def test_a_developer_is_a_system(family: str) -> None:
    developer = {"role": "developer", "content": "Be brief."}

    assert prompt(family, developer, u("Hi"), tools=TOOLS) == prompt(family, s("Be brief."), u("Hi"), tools=TOOLS)


@each
def test_an_answer_can_be_continued(family: str) -> None:
    text = prompt(family, u("Hi"), a("Hello, my"), continue_final_message=True)

    assert text.startswith(prompt(family, u("Hi")))
    assert text.endswith("Hello, my")


@each
def test_a_tokenizer_without_bos_adds_none(family: str) -> None:
    text = prompt(family, u("Hi"), bos_token=None)

    assert "None" not in text
    assert text == prompt(family, u("Hi")).removeprefix("<s>")


@each
def test_a_bare_tool_has_every_key(family: str) -> None:
    # vLLM gives keys that the request left out as null.
    whole = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function} for function in ({"name": "f", "description": None}, whole)]

    first, second = (prompt(family, u("Hi"), tools=[tool]) for tool in tools)

    assert first == second


@pytest.mark.parametrize(("family", "tools", "words"), DEFAULT_SYSTEMS)
def test_the_family_s_own_system_message(family: str, tools: Any, words: str) -> None:
    assert words in prompt(family, u("Hi"), tools=tools)


def test_a_late_system_message_is_refused_where_it_has_no_place() -> None:
    with pytest.raises(PromptError, match="Only the first message may be a system message"):
        prompt("granite-20b-fc", u("Hi"), s("Be brief."))


@pytest.mark.parametrize("family", sorted(set(names()) - {"mistral", "granite-20b-fc"}))
def test_a_late_system_message_has_a_turn_elsewhere(family: str) -> None:
    text = prompt(family, u("Hi"), s("Be brief."))

    assert text.index("Hi") < text.index("Be brief.")


def test_mistral_has_all_system_messages_with_the_last_user_message() -> None:
    assert prompt("mistral", s("One"), u("Hi"), a("Hello!"), s("Two"), u("Bye")) == (
        "<s>[INST] Hi[/INST] Hello!</s>[INST] One\n\nTwo\n\nBye[/INST]"
    )


@pytest.mark.parametrize("chat", [[s("Be brief.")], [a("Hello!")]])
def test_mistral_needs_a_user_message_for_system_and_tools(chat: Messages) -> None:
    with pytest.raises(PromptError, match="belong to a user message"):
        prompt("mistral", *chat, tools=TOOLS)


def test_mistral_needs_ids() -> None:
    with pytest.raises(PromptError, match="A tool call needs an `id`"):
        prompt("mistral", u("Hi"), {"role": "tool", "content": "x"})


@pytest.mark.parametrize(
    ("result", "embedded"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("[1]\n", "[1]"),
        ("22 degrees", '"22 degrees"'),
        ("", '""'),
        ("[x] done", '"[x] done"'),
        ('say "{}"', '"say \\"{}\\""'),
    ],
)
def test_a_result_for_mistral_is_json(result: str, embedded: str) -> None:
    assert prompt("mistral", u("Hi"), t(result)).endswith(
        f'[TOOL_RESULTS] {{"content": {embedded}, "call_id": "789abcdef"}}[/TOOL_RESULTS]'
    )


def test_pythonic_writes_python() -> None:
    arguments = {"a": None, "b": [True, {"c": False}], "d": -1.5, "e": 'it\'s "x"\n\\', "f": [], "g": {}}

    assert '[weather(a=None, b=[True, {"c": False}], d=-1.5, e="it\'s \\"x\\"\\n\\\\", f=[], g={})]' in prompt(
        "pythonic", u("Hi"), a(None, call(arguments))
    )


def test_pythonic_needs_arguments_as_an_object() -> None:
    with pytest.raises(Exception, match="the arguments of a tool call must be an object"):
        render_jinja_template([[u("Hi"), a(None, call('{"a": 1}'))]], chat_template=read("pythonic"))


@pytest.mark.parametrize("family", STRIPPING)
def test_llama_strips(family: str) -> None:
    assert prompt(family, s(" Be brief.\n"), u(" Hi\n")) == prompt(family, s("Be brief."), u("Hi"))


def test_llama_s_date_is_today_by_itself() -> None:
    assert re.search(
        r"\nToday Date: \d\d [A-Z][a-z]+ 2\d{3}\n", prompt("llama3_json", u("Hi"), tools=TOOLS, date_string=None)
    )
