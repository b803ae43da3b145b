"""The syntax of a `prompt_format` template: literal text, `{placeholder}`, and `{{` `}}` for literal braces.

Valid templates mean the same to `str.format`. Its conversions, format specs, attributes and positions (`{x!r}`,
`{x:>5}`, `{x.y}`, `{0}`) are errors here.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")
_SHOWN = 24
_LITERAL_BRACES = "write `{{` and `}}` for literal braces"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A part of a template that is filled in when a prompt is rendered."""

    name: str


class Parsed(NamedTuple):
    """A parsed template. `faults` are phrases that quote the error and say how to fix it."""

    pieces: tuple[str | Placeholder, ...]
    faults: tuple[str, ...]


def parse(template: str, known: Collection[str], hints: Mapping[str, str] | None = None) -> Parsed:
    """Parse `template`. Stray braces and placeholders not in `known` are errors, which `hints` explain by name."""
    pieces: list[str | Placeholder] = []
    faults: list[str] = []
    for match in _TOKEN.finditer(template):
        token = match.group()
        if token in ("{{", "}}") or token[0] not in "{}":
            text = token[0] if token in ("{{", "}}") else token
            before = pieces.pop() if pieces and isinstance(pieces[-1], str) else ""
            pieces.append(f"{before}{text}")
        elif token in ("{", "}"):
            faults.append(f"{_stray(template, match.start())} is stray; {_LITERAL_BRACES}")
        elif (name := token[1:-1]) in known:
            pieces.append(Placeholder(name))
        else:
            reason = (hints or {}).get(name) or f"is no placeholder here, {_listed(known)}"
            faults.append(f"`{_shown(token)}` {reason}; {_LITERAL_BRACES}")
    return Parsed(tuple(pieces), tuple(faults))


def _listed(known: Collection[str]) -> str:
    names = ", ".join(f"`{{{name}}}`" for name in sorted(known))
    return f"only {names} {'is' if len(known) == 1 else 'are'}"


def _stray(template: str, position: int) -> str:
    if template[position] == "{":
        return f"the `{{` that begins `{_shown(template[position:])}`"
    start = max(0, position + 1 - _SHOWN)
    return f"the `}}` that ends `{'…' if start else ''}{_escaped(template[start : position + 1])}`"


def _shown(text: str) -> str:
    return _escaped(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")


def _escaped(text: str) -> str:
    # Errors are one line each.
    return text.replace("\r", "\\r").replace("\n", "\\n")
