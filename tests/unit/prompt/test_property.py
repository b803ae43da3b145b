"""Any format, any conversation: our rendering, Hugging Face's, and a plain reading of the rules are one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from plain_reading import RefusedError, plain_reading
from pydantic import ValidationError
from strategies import content, continued, conversations, formats, literal, offered_tools, template
from transformers.utils.chat_template_utils import render_jinja_template

from rayllm.prompt import PromptError, PromptFormat, compile_template, render

REFUSED = object()


@pytest.mark.parametrize("ending", ["answer", "nothing", "open"])
@settings(max_examples=70, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), keys=formats(), omit_bos=st.booleans())
def test_three_readings_agree(ending: str, data: st.DataObject, keys: dict[str, Any], omit_bos: bool) -> None:
    tools = data.draw(offered_tools if "tools_list" in keys else st.sampled_from([None, None, None, [{}]]))
    chat = data.draw(continued() if ending == "open" else conversations())
    options = {
        "tools": tools,
        "add_generation_prompt": ending == "answer",
        "continue_final_message": ending == "open",
        "omit_bos": omit_bos,
    }
    template = compile_template(PromptFormat(**keys))
    before = copy.deepcopy((chat, tools))

    expected = outcome(RefusedError, plain_reading, keys, chat, **options)
    event("refused" if expected is REFUSED else "rendered")

    assert outcome(PromptError, render, template, chat, **options) == expected
    assert outcome(Exception, hugging_face, template, chat, **options) == expected
    assert (chat, tools) == before


@settings(max_examples=60)
@given(text=template("instruction"), before=literal, words=content)
def test_an_accepted_template_reads_as_str_format_reads_it(text: str, before: str, words: str) -> None:
    fmt = PromptFormat(system="{instruction}", assistant="{instruction}", user=before + text, strip_whitespace=False)

    prompt = render(compile_template(fmt), [{"role": "user", "content": words}])

    assert prompt == (before + text).format(instruction=words)


@settings(max_examples=100)
@given(text=st.tuples(content, st.just("{instruction}"), content).map("".join))
def test_any_text_is_a_sound_template_or_a_load_error(text: str) -> None:
    try:
        fmt = PromptFormat(system="{instruction}", assistant="{instruction}", user=text)
    except ValidationError as error:
        keys = [item["loc"] for item in error.errors()]
    else:
        keys = []
        assert render(compile_template(fmt), [{"role": "user", "content": "x"}]) == text.format(instruction="x")
    assert keys in ([], [("user",)])


def hugging_face(template: str, chat: list[dict[str, Any]], **options: Any) -> str:
    rendered, _ = render_jinja_template([chat], chat_template=template, **options)
    return rendered[0]


def outcome(refusal: type[Exception], reading: Any, *args: Any, **options: Any) -> object:
    try:
        return reading(*args, **options)
    except refusal:
        return REFUSED
