"""Hypothesis strategies: formats with any flags, and conversations that try to be misread."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_TRAPS = [
    "{instruction}", "{system}", "{0}", "{{", "}}", "{", "}", "{{ 7*7 }}", "{% if x %}", "{# no #}", "{%- raw -%}",
    "'", '"', '\\"', "\\", "\\n", "\n", "\r\n", "\r", "\t", "  ", " ", "\u00a0", "\u2028", "\x85", "\x00", "😀", "é",
    "ß", "<|eot_id|>", "</s>", "<<SYS>>", "-", "#", "%", "hello", "system", "-}}", "-%}",
]  # fmt: skip

content = st.lists(st.sampled_from(_TRAPS) | st.text(max_size=4), max_size=5).map("".join)
literal = content.map(lambda text: text.replace("{", "{{").replace("}", "}}"))
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": content}), max_size=3)
bad_parts = st.just([{"type": "image_url", "image_url": {"url": "data:,"}}])
json_object = st.dictionaries(content, content | st.integers() | st.none() | st.lists(content, max_size=2), max_size=2)


@st.composite
def template(draw: st.DrawFn, *names: str) -> str:
    """A template that has each placeholder of `names` at least once."""
    more = draw(st.lists(st.sampled_from(names), max_size=1))
    places = draw(st.permutations([*names, *more]))
    return draw(literal) + "".join(f"{{{name}}}" + draw(literal) for name in places)


@st.composite
def formats(draw: st.DrawFn) -> dict[str, Any]:
    in_user, with_tools = draw(st.booleans()), draw(st.booleans())
    user = ["instruction", *(["system"] if in_user else []), *(["tools_list"] if with_tools else [])]
    required = {
        "system": draw(template("instruction")),
        "assistant": draw(template("instruction")),
        "user": draw(template(*user)),
        "system_in_user": in_user,
    }
    tools = {
        "tools_list": draw(template("tools")),
        "tool_calls": draw(template("tool_call")),
        "tool": draw(template("instruction")),
    }
    optional = {
        "bos": content,
        "trailing_assistant": content,
        "default_system_message": content,
        "system_in_last_user": st.booleans() if in_user else st.just(False),
        "add_system_tags_even_if_message_is_empty": st.booleans(),
        "strip_whitespace": st.booleans(),
        "tools_in_first_user": st.booleans() if with_tools else st.just(False),
        "later_system": st.sampled_from([None, "in_place", "user", "refuse"]),
    }
    return required | (tools if with_tools else {}) | draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    # What ends in a refusal is rare, so that most conversations render.
    role = draw(st.sampled_from(["user", "assistant"] * 6 + ["tool", "function", "bad"]))
    message: dict[str, Any] = {"role": role, "content": draw(content | content | content | st.none() | parts)}
    if role == "bad":
        message = {"role": "user", "content": draw(bad_parts)}
    if role == "assistant" and draw(st.integers(0, 3)) == 0:
        call = st.fixed_dictionaries({"name": content, "arguments": json_object})
        calls = st.fixed_dictionaries({"type": st.just("function"), "function": call})
        message["tool_calls"] = draw(st.lists(calls, max_size=2))
    return message


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any order of roles; mostly with system messages at the start, or one or none anywhere."""
    chat = draw(st.lists(messages(), min_size=1, max_size=5))
    at_start = draw(st.booleans())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3] if at_start else [0, 0, 0, 1, 1, 1, 1, 2]))):
        role = draw(st.sampled_from(["system", "developer"]))
        place = 0 if at_start else draw(st.integers(0, len(chat)))
        chat.insert(place, {"role": role, "content": draw(content | st.none() | parts)})
    return chat


@st.composite
def continued(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation whose last message can mostly be continued."""
    role = draw(st.sampled_from(["assistant", "assistant", "assistant", "user", "tool", "system"]))
    return [*draw(conversations()), {"role": role, "content": draw(content | content | content | st.none())}]


offered_tools = st.none() | st.lists(
    st.fixed_dictionaries({"type": st.just("function"), "function": json_object}), max_size=2
)
