"""Generate docs/python-api.md from the docstrings of the modules that users import."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from config_pages import fields_table
from pydantic import BaseModel

# Module: the names in it. `rayllm.batch` says itself which are public.
_MODULES: dict[str, tuple[str, ...]] = {
    "rayllm": ("app", "build_app"),
    "rayllm.config": ("load_app", "load_model"),
    "rayllm.hooks": ("HookRequest", "HookUsage", "Refuse"),
    "rayllm.batch": (),
}
_HEAD = """\
# Python API

Generated from the docstrings by `make generate`. Other modules of the package are internal, and change without notice.
"""
_ENTRY = re.compile(r"^(\w+): (.*)$")


def reference() -> str:
    """The page docs/python-api.md."""
    return "\n".join([_HEAD, *(part for name in _MODULES for part in _module(name))]).rstrip() + "\n"


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    # Which process runs a package is for those who work on it.
    about = (module.__doc__ or "").partition("Process:")[0].rstrip()
    yield f"## `{name}`\n\n{_prose(about)}\n"
    for public in _MODULES[name] or module.__all__:
        yield from _member(public, getattr(module, public), "###")


def _member(name: str, member: Any, level: str) -> Iterator[str]:
    keyword = "class " if inspect.isclass(member) else "async " if inspect.iscoroutinefunction(member) else ""
    is_model = inspect.isclass(member) and issubclass(member, BaseModel)
    yield f"{level} `{name}`\n\n```text\n{keyword}{name}{'(**keys)' if is_model else _signature(member)}\n```\n"
    if text := _prose(inspect.getdoc(member) or ""):
        yield text + "\n"
    if is_model:
        is_configuration = member.__module__ == "rayllm.batch.config"
        where = "Its keys are in [batch inference](batch.md#configuration)."
        yield (where if is_configuration else fields_table(member.model_fields)) + "\n"
    elif inspect.isclass(member):
        for method_name, method in vars(member).items():
            if inspect.isfunction(method) and not method_name.startswith("_") and method.__doc__:
                yield from _member(f"{name}.{method_name}", method, "####")


def _signature(member: Any) -> str:
    try:
        signature = inspect.signature(member)
    except ValueError:
        return "()"
    parts, kinds = [], [one.kind for one in signature.parameters.values()]
    for name, one in signature.parameters.items():
        if name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and one.VAR_POSITIONAL not in kinds and "*" not in parts:
            parts.append("*")
        annotation = "" if one.annotation is one.empty else f": {one.annotation}"
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        parts.append(f"{stars}{name}{annotation}{_default(one)}")
    result = signature.return_annotation
    is_said = result is not inspect.Signature.empty and not inspect.isclass(member)
    return f"({', '.join(parts)})" + (f" -> {result}" if is_said else "")


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    text = repr(parameter.default)
    return f" = {'...' if text.startswith('<') else text}"


def _prose(docstring: str) -> str:
    """A docstring as Markdown: `Args:` and their like become lists."""
    lines: list[str] = []
    is_list = False
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Yields):", line):
            lines += [f"**{line[:-1]}**", ""]
            is_list = True
        elif is_list and (entry := _ENTRY.match(line.removeprefix("    "))) and not line.startswith("     "):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif is_list and line.startswith("     "):
            lines[-1] += " " + line.strip()
        else:
            is_list = is_list and line.startswith(" ")
            lines.append(line if not is_list else line.strip())
    return "\n".join(_fenced(lines))


def _fenced(lines: list[str]) -> Iterator[str]:
    """Lines of Python in a module's docstring, from an assignment to the next paragraph, become a block."""
    is_code = False
    for line in lines:
        if not is_code and re.match(r"\w+ = \w+\(", line):
            is_code = True
            yield "```python"
        elif is_code and not line.strip():
            is_code = False
            yield "```"
        yield line
    if is_code:
        yield "```"
