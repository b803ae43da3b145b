"""Hosted tools in requests: which they are, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.endpoints import MESSAGES, RESPONSES
from rayllm.core.errors import RequestError
from rayllm.core.hosted_tools import hosted_tools, refuse_hosted_tools

SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
MCP = {"type": "mcp", "server_label": "a", "server_url": "http://x"}
SEARCH = {"type": "web_search"}
ANTHROPIC_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}

HOSTED = [
    SEARCH,
    {"type": "web_search_preview", "search_context_size": "low"},
    {"type": "web_search_2025_08_26"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
    {"type": "image_generation"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "parameters": SCHEMA},
    MCP,
    ANTHROPIC_SEARCH,
    {"type": "bash_20250124", "name": "bash"},
    {"type": "mcp_toolset", "mcp_server_name": "a"},
]
OWN = [
    FUNCTION,
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "f", "format": {"type": "text"}},
    {"type": "custom", "name": "f", "input_schema": SCHEMA},
    {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]},
    {"name": "f", "input_schema": SCHEMA},
    {"name": "f", "type": None, "input_schema": SCHEMA},
    # Mistakes, which vLLM refuses by name.
    {"type": 7},
    {"name": "f"},
    "f",
]


@pytest.mark.parametrize("tool", HOSTED, ids=lambda tool: tool["type"])
def test_a_tool_with_a_type_and_no_schema_is_hosted(tool: dict[str, Any]) -> None:
    [found] = hosted_tools([FUNCTION, tool])
    assert (found.index, found.type, found.name) == (1, tool["type"], tool.get("name", ""))
    with pytest.raises(RequestError, match=rf"`tools\[1\]` of the type `{tool['type']}`") as caught:
        refuse_hosted_tools(RESPONSES, {"tools": [FUNCTION, tool]}, False)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("tools", [OWN, [], None, {}, 7])
def test_the_clients_own_tools_are_not(tools: Any) -> None:
    assert hosted_tools(tools) == []
    refuse_hosted_tools(RESPONSES, {"tools": tools}, False)


def test_a_tool_server_runs_some() -> None:
    run = [FUNCTION, {"type": "web_search_preview"}, {"type": "code_interpreter"}, MCP]
    refuse_hosted_tools(RESPONSES, {"tools": run, "tool_choice": {"type": "web_search_preview"}}, True)
    with pytest.raises(RequestError, match=r"`tools\[4\]` of the type `web_search`"):
        refuse_hosted_tools(RESPONSES, {"tools": [*run, SEARCH]}, True)


def test_an_mcp_server_is_refused_first_and_with_the_way_out() -> None:
    with pytest.raises(RequestError, match=r"`tools\[1\]` of the type `mcp`.* define their tools"):
        refuse_hosted_tools(RESPONSES, {"tools": [SEARCH, MCP]}, False)
    with pytest.raises(RequestError, match="Leave `mcp_servers` out") as caught:
        refuse_hosted_tools(RESPONSES, {"mcp_servers": [{"type": "url", "url": "http://x", "name": "a"}]}, False)
    assert caught.value.param == "mcp_servers"
    refuse_hosted_tools(RESPONSES, {"mcp_servers": []}, False)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "a"},
    ],
)
def test_a_choice_of_a_hosted_tool_is_refused(choice: Any) -> None:
    with pytest.raises(RequestError, match="`tool_choice` calls") as caught:
        refuse_hosted_tools(RESPONSES, {"tools": [FUNCTION], "tool_choice": choice}, False)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    [
        *("auto", "none", "required", None, 7, {}, {"type": 7}),
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "f"},
        {"type": "tool", "name": "f"},
        {"type": "any"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, SEARCH]},
        {"type": "allowed_tools", "tools": 7},
    ],
)
def test_other_choices_are_left_to_vllm(choice: Any) -> None:
    refuse_hosted_tools(RESPONSES, {"tools": [FUNCTION], "tool_choice": choice}, False)


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "function", "function": {"name": "f"}}, r"`tools\[0\].name` must be a text"),
        ({"type": "custom", "name": 7}, r"`tools\[0\].name` must be a text"),
        ({"type": "namespace", "name": "n"}, r"`tools\[0\].tools` must be a list of tools"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, r"`tools\[0\].tools\[0\].name` must be"),
        (
            {"type": "namespace", "name": "n", "tools": [{"type": "x", "name": "f"}]},
            r"`tools\[0\].tools\[0\].*, not `x`",
        ),
    ],
)
def test_a_tool_of_responses_without_what_the_type_requires_is_refused(tool: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        refuse_hosted_tools(RESPONSES, {"tools": [tool]}, False)
    assert caught.value.param == "tools"
    refuse_hosted_tools(MESSAGES, {"tools": [tool]}, False)


def test_a_type_that_there_is_not_is_refused_with_those_there_are() -> None:
    tool = {"type": "functoin", "name": "f", "parameters": SCHEMA}
    assert hosted_tools([tool]) == []
    with pytest.raises(RequestError, match=r"`tools\[0\].type` must be one of `function`, .*, not `functoin`"):
        refuse_hosted_tools(RESPONSES, {"tools": [tool]}, False)
    # vLLM does not read the type there.
    refuse_hosted_tools(MESSAGES, {"tools": [{"type": "tool", "name": "f", "input_schema": SCHEMA}]}, False)
