"""What compiled templates render and refuse, message by message."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import _get_template_variables, render_jinja_template

from rayllm.prompt import PromptError, PromptFormat, compile_template, render

KEYS = {
    "bos": "<s>",
    "system": "[S]{instruction}[/S]",
    "user": "[U]{instruction}[/U]",
    "assistant": "[A]{instruction}[/A]",
    "trailing_assistant": "[A]",
}
IN_USER = KEYS | {"user": "[U]{system}{instruction}[/U]", "system_in_user": True}
TOOL_KEYS = KEYS | {
    "user": "[U]{tools_list}{instruction}[/U]",
    "tools_list": "[T]{tools}[/T]",
    "tool_calls": "[C]{tool_call}[/C]",
    "tool": "[R]{instruction}[/R]",
}
NO_TOOLS = "this model's prompt_format has no `tool`, `tool_calls`, `tools_list`"
WEATHER = {"type": "function", "function": {"name": "weather", "description": "<b> & 'é'"}}
WEATHER_JSON = """[{"type": "function", "function": {"name": "weather", "description": "<b> & 'é'"}}]"""


def prompt(keys: dict[str, Any], *chat: dict[str, Any], **options: Any) -> str:
    return render(compile_template(PromptFormat(**keys)), chat, **options)


def s(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def u(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def a(content: Any, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})


def t(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


def call(name: Any = "f", arguments: Any = None) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


REFUSES = KEYS | {"later_system": "refuse"}
REFUSED = [
    (REFUSES, [s("1"), u("u"), s("2")], "Only one system message can be specified."),
    (REFUSES, [s("1"), s("2"), u("u"), s("3")], "Only one system message can be specified."),
    (REFUSES, [u("u"), s("1"), {"role": "developer", "content": "2"}], "Only one system message can be specified."),
    (REFUSES, [s(""), u("u"), s("")], "Only one system message can be specified."),
    (IN_USER, [s("1"), u("u"), s("2")], "Only one system message can be specified."),
    (IN_USER, [s("s"), a("a")], "The system message goes into a user message, but there is none."),
    (IN_USER | {"default_system_message": "d"}, [a("a")], "goes into a user message"),
    (IN_USER | {"add_system_tags_even_if_message_is_empty": True}, [a("a")], "goes into a user message"),
    (KEYS, [t("x")], f"The role 'tool' is not supported: {NO_TOOLS}"),
    (KEYS, [u("u"), a(None, call())], f"An assistant message has tool_calls, but {NO_TOOLS}"),
    (KEYS, [{"role": "function", "content": "x"}], f"The role 'function' is not supported: {NO_TOOLS}"),
    (KEYS, [{"role": "ipython", "content": "x"}], "'ipython'.*knows system, developer, user, assistant\\."),
    (
        TOOL_KEYS,
        [{"role": "ipython", "content": "x"}],
        "'ipython'.*knows system, developer, user, assistant, tool, function\\.",
    ),
    (KEYS, [{"content": "x"}], "The role '' is not supported"),
    (KEYS, [u(7)], "must be a string or a list of parts"),
    (KEYS, [u({"type": "text", "text": "x"})], "must be a string or a list of parts"),
    (KEYS, [u([{"type": "image_url", "image_url": {}}])], "text only, not a content part of type 'image_url'"),
    (KEYS, [u([{"text": "x"}])], "not a content part of type 'unknown'"),
    # A name that every mapping answers to in Jinja.
    (KEYS, [u([{"type": "items", "items": "x"}])], "not a content part of type 'items'"),
    (KEYS, [u([{"type": ["text"]}])], "unhashable"),
    (KEYS, [u([7])], "not a content part of type 'unknown'"),
    (KEYS, [u([{"type": "text", "text": 7}])], "text of a content part of type 'text' must be a string"),
    (KEYS, [s([{"type": "video", "x": 1}]), u("u")], "type 'video'"),
    (TOOL_KEYS, [a(None, call(name=None))], "A tool call must have a `function` with a `name`."),
    (TOOL_KEYS, [a(None, {"type": "custom"})], "A tool call must have a `function` with a `name`."),
]


@pytest.mark.parametrize(
    ("change", "chat", "expected"),
    [
        ({}, [s("1"), u("u"), s("2"), u("v")], "<s>[S]1[/S][U]u[/U][S]2[/S][U]v[/U][A]"),
        ({}, [s("1"), s("2"), u("u"), {"role": "developer", "content": " 3 "}], "<s>[S]1\n\n2[/S][U]u[/U][S]3[/S][A]"),
        ({}, [u("u"), s("1"), s("2")], "<s>[S]1[/S][U]u[/U][S]2[/S][A]"),
        ({}, [s("1"), u("u"), s("")], "<s>[S]1[/S][U]u[/U][A]"),
        ({"add_system_tags_even_if_message_is_empty": True}, [s("1"), u("u"), s("")], "<s>[S]1[/S][U]u[/U][S][/S][A]"),
        ({"later_system": "user"}, [s("1"), a("a"), s("2")], "<s>[S]1[/S][A]a[/A][U]2[/U][A]"),
        (
            IN_USER | {"later_system": "user", "system_in_last_user": True},
            [s("1"), u("u"), s("2")],
            "<s>[U]u[/U][U][S]1[/S]2[/U][A]",
        ),
    ],
)
def test_system_messages_that_come_later(change: dict[str, Any], chat: list[dict[str, Any]], expected: str) -> None:
    assert prompt(KEYS | change, *chat) == expected


@pytest.mark.parametrize(("keys", "chat", "reason"), REFUSED)
def test_refusals(keys: dict[str, Any], chat: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        prompt(keys, *chat)


CONTENTS = [
    ([], ""),
    (["a", "b"], "a\nb"),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ([{"type": "text", "text": " a "}, {"type": "text", "text": " b "}], "a \n b"),
    # vLLM skips parts that are empty or null.
    ([{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": None}, "b"], "a\nb"),
    ([{"type": "input_text", "text": "i"}, {"type": "output_text", "text": "o"}], "i\no"),
    ([{"type": "refusal", "refusal": "r"}, {"type": "thinking", "thinking": "t"}], "r\nt"),
]


@pytest.mark.parametrize(("content", "text"), CONTENTS)
def test_parts_are_joined_as_vllm_joins_them(content: list[Any], text: str) -> None:
    system = f"[S]{text}[/S]" if text else ""
    assert prompt(KEYS, s(content), u(content), a(content)) == f"<s>{system}[U]{text}[/U][A]{text}[/A][A]"


def test_the_answer_is_opened_only_when_asked_for() -> None:
    assert prompt(KEYS, u("u"), add_generation_prompt=False) == "<s>[U]u[/U]"


@pytest.mark.parametrize(
    ("change", "chat", "expected"),
    [
        ({}, [u("u"), a("The capital")], "<s>[U]u[/U][A]The capital"),
        ({}, [u("u"), a("  spaced \n")], "<s>[U]u[/U][A]spaced"),
        ({"strip_whitespace": False}, [u("u"), a("  spaced \n")], "<s>[U]u[/U][A]  spaced \n"),
        # The white space of the template itself stays, on both sides of what is continued.
        ({"assistant": "[A]\n\n{instruction} </s>"}, [u("u"), a(" spaced ")], "<s>[U]u[/U][A]\n\nspaced"),
        ({"assistant": "[A]\n\n{instruction}</s>"}, [u("u"), a("")], "<s>[U]u[/U][A]\n\n"),
        ({"assistant": "({instruction}|{instruction})"}, [a("x")], "<s>(x|x"),
        ({}, [a("one"), u("u"), a("one")], "<s>[A]one[/A][U]u[/U][A]one"),
        ({}, [u("u"), a(["one", "two "])], "<s>[U]u[/U][A]one\ntwo"),
        ({}, [u("u"), a("CONTINUE_FINAL_MESSAGE_TAG x")], "<s>[U]u[/U][A]CONTINUE_FINAL_MESSAGE_TAG x"),
        ({}, [a("a"), u("u")], "<s>[A]a[/A][U]u"),
    ],
)
def test_the_last_message_is_left_open(change: dict[str, Any], chat: list[dict[str, Any]], expected: str) -> None:
    assert prompt(KEYS | change, *chat, continue_final_message=True) == expected
    assert prompt(KEYS | change, *chat, continue_final_message=True, add_generation_prompt=False) == expected


@pytest.mark.parametrize("chat", [[u("u"), s("s")], [u("u"), a("x", call())], [u("u"), a(None)]])
def test_what_cannot_be_continued_is_refused(chat: list[dict[str, Any]]) -> None:
    with pytest.raises(PromptError, match="continue_final_message"):
        prompt(TOOL_KEYS, *chat, continue_final_message=True)


def test_offered_tools_stand_in_the_last_user_message() -> None:
    rendered = prompt(TOOL_KEYS, u("1"), a("a"), u("2"), a("b"), tools=[WEATHER])

    assert rendered == f"<s>[U]1[/U][A]a[/A][U][T]{WEATHER_JSON}[/T]2[/U][A]b[/A][A]"


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_leave_no_trace(tools: list[dict[str, Any]] | None) -> None:
    assert prompt(TOOL_KEYS, u("1"), tools=tools) == "<s>[U]1[/U][A]"
    assert prompt(KEYS, u("1"), tools=tools) == "<s>[U]1[/U][A]"


def test_offered_tools_need_templates() -> None:
    with pytest.raises(PromptError, match=f"Tools are offered, but {NO_TOOLS}"):
        prompt(KEYS, u("u"), tools=[WEATHER])


def test_offered_tools_without_a_user_message_get_one() -> None:
    expected = f"<s>[S]s[/S][U][T]{WEATHER_JSON}[/T][/U][A]a[/A][A]"

    assert prompt(TOOL_KEYS, s("s"), a("a"), tools=[WEATHER]) == expected
    assert prompt(TOOL_KEYS, s("s"), a("a"), tools=[WEATHER], continue_final_message=True) == expected.removesuffix(
        "[/A][A]"
    )


def developer(content: Any) -> dict[str, Any]:
    return {"role": "developer", "content": content}


@pytest.mark.parametrize(
    ("chat", "system"),
    [
        ([s("1"), developer("2"), u("u")], "1\n\n2"),
        ([developer(" 1 "), s([" 2", "3 "]), s("4"), u("u")], "1\n\n2\n3\n\n4"),
        ([s("1"), s(""), s(None), s("2"), u("u")], "1\n\n2"),
        ([u("u"), developer("1")], "1"),
    ],
)
def test_system_messages_at_the_start_are_joined_with_a_blank_line(chat: list[dict[str, Any]], system: str) -> None:
    assert prompt(KEYS, *chat) == f"<s>[S]{system}[/S][U]u[/U][A]"


def test_empty_system_messages_suppress_the_default() -> None:
    keys = KEYS | {"default_system_message": "d"}
    assert prompt(keys, s(""), developer(" "), u("u")) == "<s>[U]u[/U][A]"
    assert prompt(keys, u("u")) == "<s>[S]d[/S][U]u[/U][A]"


def test_joined_system_messages_stand_in_the_user_message() -> None:
    assert prompt(IN_USER, s("1"), developer("2"), u("u")) == prompt(IN_USER, s("1\n\n2"), u("u"))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (a(None, call("f", {"x": "é"})), '[C]{"name": "f", "arguments": {"x": "é"}}[/C]'),
        (a(" ", call("f", {})), '[C]{"name": "f", "arguments": {}}[/C]'),
        (a(" Wait. ", call("f", {})), 'Wait.\n[C]{"name": "f", "arguments": {}}[/C]'),
        (
            a("", call("f", {}), call("g")),
            '[C]{"name": "f", "arguments": {}}[/C]\n[C]{"name": "g", "arguments": {}}[/C]',
        ),
        (a("x") | {"tool_calls": []}, "x"),
        (a("x") | {"tool_calls": None}, "x"),
        # As vLLM: text becomes an object before the template is rendered.
        (a(None, call("f", '{"x":1}')), '[C]{"name": "f", "arguments": {"x": 1}}[/C]'),
        (a(None, call("f", "not JSON")), '[C]{"name": "f", "arguments": {}}[/C]'),
        (a(None, call("f", "[1]")), '[C]{"name": "f", "arguments": {}}[/C]'),
        (t(" 21 "), None),
        ({"role": "function", "name": "f", "content": " 21 "}, None),
    ],
)
def test_tool_calls_and_results(message: dict[str, Any], text: str | None) -> None:
    expected = "[R]21[/R]" if text is None else f"[A]{text}[/A]"
    assert prompt(TOOL_KEYS, u("u"), message) == f"<s>[U]u[/U]{expected}[A]"


def test_the_template_alone_takes_arguments_as_text_verbatim() -> None:
    template = compile_template(PromptFormat(**TOOL_KEYS))

    (rendered,), _ = render_jinja_template([[a(None, call("f", '{"x":1}'))]], chat_template=template)

    assert rendered == '<s>[A][C]{"name": "f", "arguments": {"x":1}}[/C][/A]'


def test_bos_can_be_omitted_and_given() -> None:
    template = compile_template(PromptFormat(**KEYS), bos="<bos>")

    assert render(template, [u("u")]) == "<bos>[U]u[/U][A]"
    assert render(template, [u("u")], omit_bos=False) == "<bos>[U]u[/U][A]"
    assert render(template, [u("u")], omit_bos=True) == "[U]u[/U][A]"
    assert render(compile_template(PromptFormat(**KEYS), bos=""), [u("u")]) == "[U]u[/U][A]"


def test_the_variables_read_are_the_ones_documented() -> None:
    # vLLM passes on only the variables that a template names.
    template = compile_template(PromptFormat(**TOOL_KEYS))

    names = _get_template_variables(template) - {"raise_exception", "namespace"}

    assert names == {"messages", "tools", "add_generation_prompt", "omit_bos"}


def test_vllm_leaves_the_developer_role_to_the_template() -> None:
    # It looks for the quoted word, and would otherwise merge system messages that we refuse.
    assert "'developer'" in compile_template(PromptFormat(**KEYS))
