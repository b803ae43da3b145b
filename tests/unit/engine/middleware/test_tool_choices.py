"""A choice of allowed tools, in both of its forms."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.middleware.tool_choices import with_allowed_tools

SEARCH = {"type": "web_search"}
F, G = ({"type": "function", "name": name, "parameters": {}} for name in "fg")
CUSTOM = {"type": "custom", "name": "patch"}
SPACE = {"type": "namespace", "name": "crm", "tools": [F, {**G, "name": "h"}]}
TOOLS = [F, G, CUSTOM, SPACE]


def chosen(mode: str, *entries: Any, tools: Any = TOOLS) -> dict[str, Any]:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [*entries]}
    return with_allowed_tools({"input": "a", "tools": tools, "tool_choice": choice})


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ([{"type": "function", "name": "g"}], [G]),
        ([{"type": "custom", "name": "patch"}, {"type": "function", "name": "g"}, SEARCH], [G, CUSTOM]),
        ([{"type": "namespace", "name": "crm"}], [SPACE]),
        ([{"type": "function", "name": "crm__h"}], [SPACE]),
        ([{"type": "function", "name": "h"}], [SPACE]),
    ],
)
def test_only_allowed_tools_remain(mode: str, entries: list[Any], kept: list[Any]) -> None:
    assert chosen(mode, *entries) == {"input": "a", "tools": kept, "tool_choice": mode}


def test_chats_have_it_one_level_deeper() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools[1:]}}
    kept = with_allowed_tools({"tools": tools, "tool_choice": choice})
    assert kept == {"tools": tools[1:], "tool_choice": "required"}


def test_without_a_tool_that_is_run_here_the_model_calls_none() -> None:
    assert chosen("auto", SEARCH) == chosen("auto") == {"input": "a"}
    assert chosen("auto", tools=7)["tools"] == 7
    assert chosen("auto", SEARCH, tools=[SEARCH, F]) == {"input": "a", "tools": [SEARCH], "tool_choice": "auto"}
    with pytest.raises(RequestError, match="requires a call"):
        chosen("required", SEARCH)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"mode": "auto", "tools": [{"type": "function", "name": "nobody"}]}, "`nobody`, which is not among"),
        ({"mode": "auto", "tools": [7]}, "`7`, which is not among"),
        ({"mode": "auto"}, "this form"),
        ({"mode": "none", "tools": []}, "this form"),
        ({"allowed_tools": [F]}, "this form"),
    ],
)
def test_a_wrong_choice_is_refused(choice: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        with_allowed_tools({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", **choice}})
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["auto", None, 7, {"type": "function", "name": "f"}])
def test_other_choices_are_left_as_they_are(choice: Any) -> None:
    body = {"tools": TOOLS, "tool_choice": choice}
    assert with_allowed_tools(body) is body
