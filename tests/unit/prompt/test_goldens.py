"""Prompts that earlier versions of the product and its documents give, as data."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.prompt import PromptFormat, compile_template, render

LLAMA_3 = {
    "system": "<|start_header_id|>system<|end_header_id|>\n\n{instruction}<|eot_id|>",
    "assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n{instruction}<|eot_id|>",
    "trailing_assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "user": "<|start_header_id|>user<|end_header_id|>\n\n{instruction}<|eot_id|>",
    "system_in_user": False,
    "bos": "<|begin_of_text|>",
    "default_system_message": "",
}
LLAMA_3_PROMPT = """\
<|begin_of_text|><|start_header_id|>system<|end_header_id|>

You are a helpful assistant.<|eot_id|><|start_header_id|>user<|end_header_id|>

What is the capital of France?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

The capital of France is Paris.<|eot_id|><|start_header_id|>user<|end_header_id|>

What about Germany?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""

SPACED = {
    "system": "[system] {instruction} [/system] ",
    "user": "[user] {instruction} [/user] ",
    "assistant": "[assistant] {instruction} [/assistant] ",
    "trailing_assistant": "[assistant]",
}
LLAMA_2 = {
    "system": "<<SYS>>\n{instruction}\n<</SYS>>\n\n",
    "user": "[INST] {system}{instruction} [/INST]",
    "assistant": " {instruction} </s><s> ",
    "trailing_assistant": " ",
    "system_in_user": True,
}
SHORT = {
    "system": "[S]{instruction}[/S]",
    "user": "[U]{instruction}[/U]",
    "assistant": "[A]{instruction}[/A]",
    "trailing_assistant": "[A]",
}
IN_USER = SHORT | {"user": "[U]{system}{instruction}[/U]", "system_in_user": True}
IN_LAST_USER = IN_USER | {"system_in_last_user": True}
TAGS = {"add_system_tags_even_if_message_is_empty": True}
DEFAULT = {"default_system_message": "d"}
TEXT_ONLY = {"bos": "<|begin_of_text|>"} | dict.fromkeys(["system", "assistant", "user"], "{instruction} ")


def s(text: str | None) -> dict[str, Any]:
    return {"role": "system", "content": text}


def u(text: str | None) -> dict[str, Any]:
    return {"role": "user", "content": text}


def a(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


GOLDENS = [
    (
        "the worked example of the documents",
        LLAMA_3,
        [
            s("You are a helpful assistant."),
            u("What is the capital of France?"),
            a("The capital of France is Paris."),
            u("What about Germany?"),
        ],
        LLAMA_3_PROMPT,
    ),
    ("a user", SPACED, [u("hello1")], "[user] hello1 [/user] [assistant]"),
    (
        "default system message",
        SPACED | {"default_system_message": "Test"},
        [u("hello1")],
        "[system] Test [/system] [user] hello1 [/user] [assistant]",
    ),
    ("tags without a system", SPACED | TAGS, [u("hello1")], "[system]  [/system] [user] hello1 [/user] [assistant]"),
    ("bos", SPACED | {"bos": "[BOS]"}, [u("hello1")], "[BOS][user] hello1 [/user] [assistant]"),
    (
        "white space kept",
        SPACED | {"strip_whitespace": False},
        [u("hello1 "), a(" hello2"), u("hello3")],
        "[user] hello1  [/user] [assistant]  hello2 [/assistant] [user] hello3 [/user] [assistant]",
    ),
    (
        "white space stripped",
        SPACED,
        [u("hello1 "), a(" hello2"), u("hello3")],
        "[user] hello1 [/user] [assistant] hello2 [/assistant] [user] hello3 [/user] [assistant]",
    ),
    (
        "Llama 2, system",
        LLAMA_2,
        [s("hello1"), u("hello2")],
        "[INST] <<SYS>>\nhello1\n<</SYS>>\n\nhello2 [/INST] ",
    ),
    (
        "Llama 2, turns",
        LLAMA_2,
        [u("hello1"), a("hello2"), u("hello3")],
        "[INST] hello1 [/INST] hello2 </s><s> [INST] hello3 [/INST] ",
    ),
    (
        "Mistral",
        {
            "system": "{instruction} + ",
            "user": "[INST] {system}{instruction} [/INST]",
            "assistant": "{instruction}</s> ",
            "system_in_user": True,
        },
        [u("What is the capital of France?"), a("The capital of France is Paris."), u("What about Germany?")],
        "[INST] What is the capital of France? [/INST]The capital of France is Paris.</s> "
        "[INST] What about Germany? [/INST]",
    ),
    ("text only", TEXT_ONLY, [s("One"), u("two"), a("three")], "<|begin_of_text|>One two three "),
    ("system after user moves to the front", SHORT, [u("u"), s("s")], "[S]s[/S][U]u[/U][A]"),
    ("only a system", SHORT, [s("s")], "[S]s[/S][A]"),
    ("consecutive users", SHORT, [u("1"), u("2")], "[U]1[/U][U]2[/U][A]"),
    ("assistant last", SHORT, [u("u"), a("partial")], "[U]u[/U][A]partial[/A][A]"),
    ("braces in content", SHORT, [u("{x} {instruction}")], "[U]{x} {instruction}[/U][A]"),
    ("default suppressed by an empty system", SHORT | DEFAULT, [s(""), u("u")], "[U]u[/U][A]"),
    ("default suppressed by a null system", SHORT | DEFAULT, [s(None), u("u")], "[U]u[/U][A]"),
    ("default suppressed by a blank system", SHORT | DEFAULT, [s(" \n"), u("u")], "[U]u[/U][A]"),
    ("the same, in the user", IN_USER | DEFAULT, [s(""), u("u")], "[U]u[/U][A]"),
    ("blank system, not stripped", SHORT | {"strip_whitespace": False}, [s(" "), u("u")], "[S] [/S][U]u[/U][A]"),
    ("empty system with tags", SHORT | TAGS | DEFAULT, [s(""), u("u")], "[S][/S][U]u[/U][A]"),
    ("empty system with tags, in the user", IN_USER | TAGS, [s(""), u("u")], "[U][S][/S]u[/U][A]"),
    ("no system with tags, in the user", IN_USER | TAGS, [u("u")], "[U][S][/S]u[/U][A]"),
    ("the default is stripped", SHORT | {"default_system_message": " d "}, [u("u")], "[S]d[/S][U]u[/U][A]"),
    ("system in user is stripped", IN_USER, [s(" s "), u("u")], "[U][S]s[/S]u[/U][A]"),
    ("system in the first user", IN_USER, [s("s"), u("1"), a("a"), u("2")], "[U][S]s[/S]1[/U][A]a[/A][U]2[/U][A]"),
    ("default in the first user", IN_USER | DEFAULT, [u("1"), u("2")], "[U][S]d[/S]1[/U][U]2[/U][A]"),
    ("system in the last user", IN_LAST_USER, [s("s"), u("1"), a("a"), u("2")], "[U]1[/U][A]a[/A][U][S]s[/S]2[/U][A]"),
    ("assistant first, system in user", IN_USER, [s("s"), a("a"), u("u")], "[A]a[/A][U][S]s[/S]u[/U][A]"),
    ("no system, in the user, no user", IN_USER, [a("a")], "[A]a[/A][A]"),
    ("null contents", SHORT, [u(None), a(None)], "[U][/U][A][/A][A]"),
    ("contents missing", SHORT, [{"role": "user"}], "[U][/U][A]"),
    ("developer is the system", SHORT, [{"role": "developer", "content": "s"}, u("u")], "[S]s[/S][U]u[/U][A]"),
    ("literal braces in a template", SHORT | {"user": '{{"q": "{instruction}"}}'}, [u("u")], '{"q": "u"}[A]'),
    ("literal braces around a placeholder", SHORT | {"user": "{{{instruction}}}"}, [u("u")], "{u}[A]"),
    ("a placeholder twice", SHORT | {"user": "{instruction}={instruction}"}, [u("u")], "u=u[A]"),
    ("braces in literal keys", SHORT | {"bos": "{{", "trailing_assistant": "{x}"}, [u("u")], "{{[U]u[/U]{x}"),
    ("Jinja in a template", SHORT | {"user": "{{{{ 1 }}}} {{% {instruction} {{#"}, [u("u")], "{{ 1 }} {% u {#[A]"),
    (
        "any text in a template",
        SHORT | {"user": "😀é\\n\"'{instruction}\r\n\u2028"},
        [u("u")],
        "😀é\\n\"'u\r\n\u2028[A]",
    ),
    ("Jinja in content", SHORT, [u("{{ 7*7 }}{% raw %}{# c #}")], "[U]{{ 7*7 }}{% raw %}{# c #}[/U][A]"),
]


@pytest.mark.parametrize(("keys", "chat", "prompt"), [golden[1:] for golden in GOLDENS], ids=[g[0] for g in GOLDENS])
def test_goldens(keys: dict[str, Any], chat: list[dict[str, Any]], prompt: str) -> None:
    assert render(compile_template(PromptFormat(**keys)), chat) == prompt
