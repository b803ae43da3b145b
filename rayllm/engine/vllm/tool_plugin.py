"""Loads tool parser plugins, users' Python files that register a parser with vLLM."""

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from rayllm.core.errors import ConfigError


def load_tool_plugin(path: str, manager: Any) -> None:
    """Run a plugin, a Python file, and adapt its parsers in vLLM's `ToolParserManager` to the installed vLLM.

    Parsers for older versions take only the tokenizer; vLLM now passes the request's tools, too.

    Raises:
        ConfigError: the file fails, or registers no parser.
    """
    before = _registered(manager)
    module = _run(path)
    new = {name: parser for name, parser in _registered(manager).items() if before.get(name) != parser}
    if not new:
        raise ConfigError(
            f"tool_calling.plugin: {path} registers no tool parser; decorate a ToolParser with "
            "`@ToolParserManager.register_module(...)`."
        )
    for name in new:
        parser = _parser_class(path, module, name, new[name])
        if not _takes_tools(parser):
            # vLLM would look up a lazy entry in the module by name.
            manager.lazy_parsers.pop(name, None)
            manager.register_module(name, module=_taking_tools(parser))


def _registered(manager: Any) -> dict[str, Any]:
    return {**manager.lazy_parsers, **manager.tool_parsers}


def _run(path: str) -> Any:
    # A unique name: a plugin `json.py` must not shadow the library's module.
    name = f"rayllm_tool_plugin_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"tool_calling.plugin: {path} is not a Python file.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"tool_calling.plugin: {path} fails: {type(error).__name__}: {error}") from error
    return module


def _parser_class(path: str, module: Any, name: str, registered: Any) -> Any:
    parser = getattr(module, registered[1], None) if isinstance(registered, tuple) else registered
    if not inspect.isclass(parser):
        raise ConfigError(f"tool_calling.plugin: {path}: the parser `{name}` is not a class at the file's top level.")
    return parser


def _takes_tools(parser: Any) -> bool:
    parameters = list(inspect.signature(parser.__init__).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _taking_tools(parser: Any) -> Any:
    class WithTools(parser):  # type: ignore[misc]
        def __init__(self, tokenizer: Any, tools: Any = None) -> None:
            super().__init__(tokenizer)
            self.tools = list(tools or ())

    WithTools.__name__ = WithTools.__qualname__ = parser.__name__
    return WithTools
