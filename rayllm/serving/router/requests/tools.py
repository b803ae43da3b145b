"""Hosted tools of requests, which routers leave out."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from rayllm.core.errors import RequestError
from rayllm.core.hosted_tools import ON_TOOL_SERVERS, HostedTool, called_tools, check_called, hosted_tools

# Replicas refuse more.
_MAX_TOOLS = 1_000
_MAX_CALLED = 100
_MAX_NAMED = 20
_LONGEST_TYPE = 64
_NOT_IN_HEADERS = re.compile(r"[^\w.-]", re.ASCII)


@dataclass(frozen=True)
class Tools:
    """The tools of a request that has hosted tools.

    `hosted` are those, and `called` what `tool_choice` calls of them; `requires_call` says that it requires a call of
    any tool. `others` are the tools of the client as JSON, and `on_server` those that a tool server may run, both
    without brackets.
    """

    hosted: tuple[HostedTool, ...]
    called: tuple[str, ...]
    requires_call: bool
    others: str
    on_server: str

    @classmethod
    def in_body(cls, body: dict[str, Any]) -> Self | None:
        """The tools of a request; None without hosted tools."""
        tools, choice = body.get("tools"), body.get("tool_choice")
        hosted = hosted_tools(tools)
        if not isinstance(tools, list) or not hosted or len(tools) > _MAX_TOOLS:
            return None
        indexes = {tool.index for tool in hosted}
        on_server = [tools[tool.index] for tool in hosted if tool.type in ON_TOOL_SERVERS]
        return cls(
            tuple(hosted),
            tuple(islice(called_tools(choice, hosted), _MAX_CALLED)),
            (choice.get("mode", choice.get("type")) if isinstance(choice, dict) else choice) in ("required", "any"),
            json.dumps([tool for index, tool in enumerate(tools) if index not in indexes])[1:-1],
            json.dumps(on_server)[1:-1],
        )

    def ignored(self, has_tool_server: bool) -> list[HostedTool]:
        """The tools to leave out. None with an MCP server among them, for which a replica refuses the request."""
        run = ON_TOOL_SERVERS if has_tool_server else ()
        ignored = [tool for tool in self.hosted if tool.type not in run]
        return [] if any(tool.is_mcp for tool in ignored) else ignored

    def fields_without_ignored(self, has_tool_server: bool) -> str:
        """The fields of the request that change, as JSON without brackets.

        Raises RequestError if `tool_choice` calls a tool that is left out, or one of none.
        """
        check_called(self.called, has_tool_server)
        tools = ", ".join(filter(None, (self.others, self.on_server if has_tool_server else "")))
        if tools:
            return f'"tools": [{tools}]'
        if self.requires_call:
            message = "`tool_choice` requires a call, but this service runs none of the `tools`. Define a function."
            raise RequestError(message, "tool_choice")
        return '"tools": null, "tool_choice": null'


def types_for_header(tools: Sequence[HostedTool]) -> str:
    types = list(dict.fromkeys(_NOT_IN_HEADERS.sub("_", tool.type[:_LONGEST_TYPE]) for tool in tools))
    return ", ".join(types[:_MAX_NAMED] + ["..."] * (len(types) > _MAX_NAMED))
