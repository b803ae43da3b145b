"""Rendering any chat template, ours or a model's own."""

from __future__ import annotations

import copy
import enum
import subprocess
import sys
from typing import Any

import numpy
import pytest
from pydantic import BaseModel
from transformers.utils.chat_template_utils import render_jinja_template

from rayllm import prompt as package
from rayllm.prompt import PromptError, PromptFormat, compile_template, render

HI = [{"role": "user", "content": "Hi"}]
KEYS = {"system": "<{instruction}>", "user": "{system}{instruction}", "assistant": "{instruction}."}


def test_messages_and_tools_are_not_changed() -> None:
    template = compile_template(
        PromptFormat(
            system="{instruction}",
            user="{instruction}{tools_list}",
            assistant="{instruction}",
            tools_list="{tools}",
            tool_calls="{tool_call}",
            tool="{instruction}",
        )
    )
    chat = [
        {"role": "user", "content": [{"type": "text", "text": " a "}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": [{"type": "text", "text": " b "}]},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    before = copy.deepcopy((chat, tools))

    first = render(template, chat, tools=tools, continue_final_message=True)

    assert (chat, tools) == before
    assert render(template, chat, tools=tools, continue_final_message=True) == first


@pytest.mark.parametrize("empty", [[], ()])
def test_no_messages_are_refused(empty: Any) -> None:
    with pytest.raises(PromptError, match="Messages cannot be an empty list"):
        render("x", empty)


def test_a_message_must_be_an_object() -> None:
    with pytest.raises(PromptError, match="not str"):
        render("x", ["Hi"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('not today') }}", "^not today$"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ namespace(__class__=1) }}", "underscore"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "underscore"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ nothing.at_all }}", "undefined"),
    ],
)
def test_a_template_that_fails_is_a_prompt_error(template: str, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        render(template, HI)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "Hi\n"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hi!"),
        ("""{{ {"b": "<é>", "a": 1} | tojson }}""", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ dict(a=1).a }}{{ namespace(self=2).self }}", "12"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ bos_token }}{{ documents is none }}", "<s>True"),
        ("{{ messages[0].name is defined }}", "False"),
    ],
)
def test_the_environment_is_hugging_faces(template: str, expected: str) -> None:
    chat = [HI[0] | {"name": None}]

    assert render(template, chat, bos_token="<s>") == expected
    assert hugging_face(template, chat, bos_token="<s>") == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "<Hi><  so "),
        ("{% for m in messages %}<\n{{ m.content | trim }}>{% endfor %}", "<\nHi><\nso"),
    ],
)
def test_a_models_own_template_is_cut_as_hugging_face_cuts_it(template: str, expected: str) -> None:
    chat = [*HI, {"role": "assistant", "content": "  so "}]

    assert render(template, chat, continue_final_message=True) == expected
    assert hugging_face(template, chat, continue_final_message=True) == expected


def test_a_template_that_drops_the_last_content_cannot_be_continued() -> None:
    with pytest.raises(PromptError, match="does not render the last message's content"):
        render("x{# content #}", HI, continue_final_message=True)


def test_messages_may_be_objects_that_can_become_plain() -> None:
    class Role(enum.StrEnum):
        USER = "user"

    class Message(BaseModel):
        role: str
        content: str

    template = compile_template(PromptFormat(**(KEYS | {"user": "{instruction}"})))
    # As in the rows of a dataset.
    column = numpy.array(["c", {"type": "text", "text": "d"}], dtype=object)

    assert render(template, [Message(role="user", content="a")]) == "a"  # type: ignore[list-item]
    assert render(template, [{"role": Role.USER, "content": "b"}]) == "b"
    assert render(template, [{"role": "user", "content": column}]) == "c\nd"
    assert render("{{ tools | tojson }}", HI, tools=[{"n": numpy.int64(1)}, {"n": numpy.float32(0.5)}]) == (
        '[{"n": 1}, {"n": 0.5}]'
    )


def test_importing_the_package_loads_neither_jinja_nor_anything_heavy() -> None:
    program = (
        "import sys, rayllm.prompt; "
        "print(sorted({'jinja2', 'transformers', 'torch', 'vllm', 'ray', 'yaml'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_public_names_are_sorted_and_there() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def hugging_face(template: str, chat: list[dict[str, Any]], **options: Any) -> str:
    # As its `apply_chat_template` does before.
    chat = [{key: value for key, value in message.items() if value is not None} for message in chat]
    rendered, _ = render_jinja_template([chat], chat_template=template, **options)
    return str(rendered[0])
