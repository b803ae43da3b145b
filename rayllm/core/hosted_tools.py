"""Tools that the service would have to run itself, such as a search of the web. RayLLM runs none of them.

Agents send them by default. Routers leave them out of requests (`router.hosted_tools`), and replicas refuse the rest.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rayllm.core.endpoints import COUNT_TOKENS, MESSAGES, RESPONSES
from rayllm.core.errors import RequestError

PATHS = (RESPONSES, MESSAGES, COUNT_TOKENS)
"""Endpoints whose requests may have such tools."""
ON_TOOL_SERVERS = ("web_search_preview", "code_interpreter", "mcp")
"""What vLLM runs for models with a tool server (`engine_kwargs.tool_server`)."""

# Types of tools that the client runs; vLLM shows them to the model as functions.
_OF_CLIENTS = ("function", "custom", "namespace")
_SCHEMAS = ("function", "parameters", "input_schema")
_MCP = ("mcp", "mcp_toolset")
_CHOICES = (*_OF_CLIENTS, "tool", "auto", "any", "none")
_LONGEST_SHOWN = 64


@dataclass(frozen=True)
class HostedTool:
    """A tool in a request, with the name that a `tool_choice` may have; "" without."""

    index: int
    type: str
    name: str = ""

    @property
    def is_mcp(self) -> bool:
        """Whether the tool stands for an MCP server's tools, which are never left out."""
        return self.type in _MCP

    @property
    def refusal(self) -> RequestError:
        """The error for a request with this tool."""
        where = f"`tools[{self.index}]` of the type `{self.type[:_LONGEST_SHOWN]}`"
        why = "does not run such tools. Leave it out, and define functions with a schema."
        if self.is_mcp:
            why = "calls no MCP servers. Call them yourself, and define their tools here."
        return RequestError(f"{where}: this service {why}", "tools")


def hosted_tools(tools: Any) -> list[HostedTool]:
    """The hosted tools among a request's `tools`, run by a tool server or not."""
    return [
        HostedTool(index, tool["type"], name if isinstance(name := tool.get("name"), str) else "")
        for index, tool in enumerate(tools if isinstance(tools, list) else ())
        if is_hosted(tool)
    ]


def is_hosted(tool: Any) -> bool:
    """Whether a tool has a type of its own instead of a name and a schema of its arguments."""
    if not isinstance(tool, dict) or not isinstance(kind := tool.get("type"), str) or kind in _OF_CLIENTS:
        return False
    return tool.get("name") is None or all(tool.get(schema) is None for schema in _SCHEMAS)


def called_tools(choice: Any, hosted: Iterable[HostedTool]) -> Iterator[str]:
    """The types or names of hosted tools that a `tool_choice` forces; one of allowed tools forces none."""
    if not isinstance(choice, dict) or not isinstance(kind := choice.get("type"), str) or kind == "allowed_tools":
        return
    if kind not in _CHOICES:
        yield kind[:_LONGEST_SHOWN]
    elif any(tool.name == choice.get("name") for tool in hosted):
        yield choice["name"][:_LONGEST_SHOWN]


def check_called(called: Iterable[str], has_tool_server: bool) -> None:
    """Raise a RequestError for a `tool_choice` that calls a tool that is not run."""
    for name in called:
        if not (has_tool_server and name in ON_TOOL_SERVERS):
            message = f"`tool_choice` calls `{name}`, which this service does not run. Choose another tool, or `auto`."
            raise RequestError(message, "tool_choice")


def refuse_hosted_tools(path: str, body: dict[str, Any], has_tool_server: bool) -> None:
    """Refuse a request to one of `PATHS` that still has hosted tools, or tools of an unknown type.

    Raises:
        RequestError: names the tool, and what to use instead.
    """
    found = hosted_tools(body.get("tools"))
    refused = [tool for tool in found if not (has_tool_server and tool.type in ON_TOOL_SERVERS)]
    if refused:
        # A router leaves the others in a request with an MCP server, so that its index is the client's.
        raise next((tool for tool in refused if tool.is_mcp), refused[0]).refusal
    if path == RESPONSES:
        _check_types(body.get("tools"))
    if body.get("mcp_servers"):
        message = "This service calls no MCP servers. Leave `mcp_servers` out, and define their tools with a schema."
        raise RequestError(message, "mcp_servers")
    check_called(called_tools(body.get("tool_choice"), ()), has_tool_server)


def _check_types(tools: Any, name: str = "tools") -> None:
    """Refuse tools of an unknown type, or without a name. vLLM's message would name the fields of all types."""
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind, place = tool.get("type") if isinstance(tool, dict) else None, f"{name}[{index}]"
        if isinstance(kind, str) and kind not in _OF_CLIENTS and not (name == "tools" and is_hosted(tool)):
            types = ", ".join(f"`{known}`" for known in _OF_CLIENTS)
            raise RequestError(f"`{place}.type` must be one of {types}, not `{kind[:_LONGEST_SHOWN]}`.", "tools")
        if kind in _OF_CLIENTS and not isinstance(tool.get("name"), str):
            raise RequestError(f"`{place}.name` must be a text; it is required.", "tools")
        if kind == "namespace":
            if not isinstance(tool.get("tools"), list):
                raise RequestError(f"`{place}.tools` must be a list of tools; it is required.", "tools")
            _check_types(tool["tools"], f"{place}.tools")
