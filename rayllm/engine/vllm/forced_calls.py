"""Constrains the arguments of forced tool calls, which vLLM leaves free unless a tool is `strict`."""

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

# vLLM's parser for Mistral makes its own grammars. Its module has moved.
_MISTRAL = (("vllm.parser.mistral", "MistralParser"), ("vllm.tool_parsers.mistral_tool_parser", "MistralToolParser"))


def enforce_arguments() -> None:
    """Have vLLM constrain the arguments of forced calls by their schemas, as if all tools were strict."""
    from vllm.tool_parsers import structural_tag_registry as registry

    if hasattr(registry.get_model_structural_tag, "__wrapped__"):
        return
    # Versions without it have no such tools.
    flat = getattr(registry, "get_function_tools", list)
    registry.get_model_structural_tag = _with_strict_tools(registry.get_model_structural_tag, flat)
    for module, name in _MISTRAL:
        try:
            parser = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        parser.adjust_request = _with_strict_request(parser.adjust_request)


def _with_strict_tools(make_tag: Callable[..., Any], flat: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(make_tag)
    def make(model: str, tools: Any, tool_choice: Any, *args: Any, **kwargs: Any) -> Any:
        if tools and _forces(tool_choice):
            # Custom tools and those of a namespace become functions.
            tools = [_strict(function) for tool in tools for function in flat([tool]) or [tool]]
        return make_tag(model, tools, tool_choice, *args, **kwargs)

    return make


def _with_strict_request(adjust: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(adjust)
    def adjust_request(self: Any, request: Any) -> Any:
        tools = request.tools
        if not tools or not _forces(request.tool_choice):
            return adjust(self, request)
        # The tools may be in the prompt, so the request keeps them as the client sent them.
        request.tools = [_strict(tool) for tool in tools]
        try:
            return adjust(self, request)
        finally:
            request.tools = tools

    return adjust_request


def _forces(tool_choice: Any) -> bool:
    return tool_choice not in (None, "auto", "none")


def _strict(tool: Any) -> Any:
    """A tool with `strict` set, if the tool is a function of Chat Completions or the Responses API."""
    function = getattr(tool, "function", None)
    if function is not None:
        return tool.model_copy(update={"function": function.model_copy(update={"strict": True})})
    return tool.model_copy(update={"strict": True}) if hasattr(tool, "parameters") else tool
