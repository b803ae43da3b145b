"""Replaces OpenAI's `tool_choice` of allowed tools, which vLLM refuses in chats and does not keep to elsewhere."""

from typing import Any

from rayllm.core.errors import RequestError
from rayllm.core.hosted_tools import is_hosted

Body = dict[str, Any]

_FORM = '`{"type": "allowed_tools", "mode": "auto" or "required", "tools": […]}`, in chats with `allowed_tools: {…}`'


def with_allowed_tools(body: Body) -> Body:
    """A copy of `body` with only the tools that its `tool_choice` allows, and the choice's mode as the choice.

    A namespace is allowed with any of its tools. Raises a RequestError for a tool that the request does not define.
    """
    choice, tools = body.get("tool_choice"), body.get("tools", [])
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools" or not isinstance(tools, list):
        return body
    allowed = choice.get("allowed_tools", choice)
    entries, mode = (allowed.get("tools"), allowed.get("mode")) if isinstance(allowed, dict) else (None, None)
    if not isinstance(entries, list) or mode not in ("auto", "required"):
        raise RequestError(f"`tool_choice` must have this form: {_FORM}.", "tool_choice")
    wanted = {_name(entry): entry for entry in entries}
    kept = [tool for tool in tools if _names(tool) & wanted.keys()]
    for name in wanted.keys() - {name for tool in kept for name in _names(tool)}:
        if not is_hosted(wanted[name]):
            raise RequestError(f"`tool_choice` allows `{name[:64]}`, which is not among the `tools`.", "tool_choice")
    if mode == "required" and not kept:
        raise RequestError("`tool_choice` requires a call, and allows no tool that this service knows.", "tool_choice")
    others = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    return {**others, "tools": kept, "tool_choice": mode} if kept else others


def _names(tool: Any) -> set[str]:
    """The names of a tool, and of those in it, if it is a namespace."""
    nested = tool.get("tools") if isinstance(tool, dict) else None
    inner = {_name(each) for each in nested} if isinstance(nested, list) else set()
    return {_name(tool)} | inner | {f"{_name(tool)}__{name}" for name in inner}


def _name(tool: Any) -> str:
    """The name of a tool, or of an entry for it; the type of a tool that has no name."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return str(function.get("name") or tool.get("type")) if isinstance(function, dict) else str(tool)
