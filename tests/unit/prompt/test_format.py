"""A format is proven when it is loaded; what is wrong names the key and says how to mend it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rayllm.prompt import PromptFormat

SOUND = {"system": "{instruction}", "user": "{instruction}", "assistant": "{instruction}"}
TOOLS = {
    "user": "{instruction}{tools_list}",
    "tools_list": "{tools}",
    "tool_calls": "{tool_call}",
    "tool": "{instruction}",
}
BRACES = "write `{{` and `}}` for literal braces"

FAULTS = [
    ({"user": "[INST] [/INST]"}, "user", "must contain `{instruction}`", "put it where the message's content belongs"),
    ({"assistant": ""}, "assistant", "must contain `{instruction}`", "put it where"),
    ({"user": "{{instruction}}"}, "user", "must contain `{instruction}`", "put it where"),
    ({"system": '{"json": {instruction}}'}, "system", '`{` that begins `{"json": {instruction}}`', BRACES),
    ({"system": "a } {instruction}"}, "system", "`}` that ends `a }`", BRACES),
    ({"system": "{instruction} {"}, "system", "`{` that begins `{`", BRACES),
    ({"user": "{instruction} {foo}"}, "user", "`{foo}` is no placeholder here, only `{instruction}` is", BRACES),
    ({"user": "{instruction} {0}"}, "user", "`{0}` is no placeholder", BRACES),
    ({"user": "{instruction} {}"}, "user", "`{}` is no placeholder", BRACES),
    ({"user": "{instruction!r}"}, "user", "`{instruction!r}` is no placeholder", BRACES),
    ({"user": "{instruction:>9}"}, "user", "`{instruction:>9}` is no placeholder", BRACES),
    ({"user": "{instruction.x}"}, "user", "`{instruction.x}` is no placeholder", BRACES),
    ({"user": "{ instruction }"}, "user", "`{ instruction }` is no placeholder", BRACES),
    ({"system": "{instruction}{system}"}, "system", "`{system}` is no placeholder", BRACES),
    ({"user": "{system}{instruction}"}, "user", "`{system}` needs `system_in_user: true`", BRACES),
    ({"system_in_user": True}, "user", "must contain `{system}`", "`system_in_user` is true"),
    ({"tools_in_first_user": True}, "tools_in_first_user", "needs `tools_list`", "add it, or drop"),
    ({"system_in_last_user": True}, "system_in_last_user", "needs `system_in_user: true`", "set it, or drop"),
    (TOOLS | {"user": "{instruction}"}, "user", "must contain `{tools_list}`", "`tools_list` is set"),
    ({"user": "{instruction}{tools_list}"}, "user", "`{tools_list}` needs the key `tools_list`", BRACES),
    (TOOLS | {"tools_list": "{tools_list}"}, "tools_list", "must contain `{tools}`", "JSON array of the offered tools"),
    (TOOLS | {"tool_calls": "x"}, "tool_calls", "must contain `{tool_call}`", "JSON object of a call"),
    (TOOLS | {"tool": "x"}, "tool", "must contain `{instruction}`", "put it where"),
    (TOOLS | {"tool": None}, "tool", "`tool` is missing", "add it, or drop `tools_list` and `tool_calls`"),
    (TOOLS | {"tools_list": None}, "tools_list", "`tools_list` is missing", "the three belong together"),
    ({"tool": "{instruction}"}, "tool_calls", "`tool_calls` is missing; `tool` is given", "drop `tool`"),
    ({"user": "{instruction}" + "\n" * 3 + "{" + "x" * 99}, "user", "begins `{" + "x" * 23 + "…`", BRACES),
    ({"use": "{instruction}"}, "use", "Extra inputs are not permitted", ""),
    ({"user": None}, "user", "valid string", ""),
    ({"bos": 1}, "bos", "valid string", ""),
]


@pytest.mark.parametrize(("change", "key", "fault", "remedy"), FAULTS)
def test_faults(change: dict[str, Any], key: str, fault: str, remedy: str) -> None:
    messages = [message for at, message in faults(SOUND | change) if at == (key,)]

    assert len(messages) == 1
    assert fault in messages[0]
    assert remedy in messages[0]
    assert "\n" not in messages[0]


def test_all_faults_are_told_at_once_each_at_its_key() -> None:
    class Config(BaseModel):
        prompt_format: PromptFormat

    keys = {"system": "{", "user": "{foo}{0}", "tool": "x", "strip_whitespace": "perhaps", "bogus": 1}

    found = dict(faults({"prompt_format": keys}, Config))

    prefix = "prompt_format"
    expected = {"system", "assistant", "user", "tool", "strip_whitespace", "bogus", "tools_list", "tool_calls"}
    assert {path[1] for path in found} == expected
    assert {path[0] for path in found} == {prefix}
    assert "`{foo}`" in found[prefix, "user"]
    assert "`{0}`" in found[prefix, "user"]


def test_a_faulty_switch_is_told_once() -> None:
    keys = SOUND | {"user": "{system}{instruction}", "system_in_user": "perhaps"}

    assert [path for path, _ in faults(keys)] == [("system_in_user",)]


def test_kinds_of_faults_are_kept_for_whoever_words_them() -> None:
    with pytest.raises(ValidationError) as caught:
        PromptFormat.model_validate({"system": "{instruction}", "use": 1, "tool": "{instruction}"})

    assert {"missing", "extra_forbidden"} < {item["type"] for item in caught.value.errors()}


def test_a_format_is_frozen_and_compares_by_value() -> None:
    fmt = PromptFormat(**SOUND)

    assert fmt == PromptFormat(**SOUND)
    assert hash(fmt) == hash(PromptFormat(**SOUND))
    with pytest.raises(ValidationError, match="frozen"):
        fmt.bos = "x"  # type: ignore[misc]


def test_defaults() -> None:
    fmt = PromptFormat(**SOUND)

    assert fmt.model_dump(exclude=set(SOUND)) == {
        "bos": "",
        "trailing_assistant": "",
        "default_system_message": "",
        "system_in_user": False,
        "system_in_last_user": False,
        "add_system_tags_even_if_message_is_empty": False,
        "later_system": None,
        "strip_whitespace": True,
        "tools_list": None,
        "tools_in_first_user": False,
        "tool_calls": None,
        "tool": None,
    }
    assert fmt.places_later_system == "in_place"
    assert not fmt.renders_tools
    assert PromptFormat(**(SOUND | TOOLS)).renders_tools


def faults(keys: dict[str, Any], model: type[BaseModel] = PromptFormat) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        model(**keys)
    return [(item["loc"], item["msg"]) for item in caught.value.errors()]
