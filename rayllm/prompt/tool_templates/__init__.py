"""Chat templates for tool calling, for model families whose own template knows no tools or refuses what vLLM sends.

A template has the name of the tool parser of vLLM that reads what it writes. Each is one whole file, since vLLM takes a
chat template as one text.
"""

from __future__ import annotations

from importlib.resources import files

_SUFFIX = ".jinja"


def names() -> tuple[str, ...]:
    """The tool parsers that have a template here, in alphabetical order."""
    found = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


def read(name: str) -> str | None:
    """The chat template for the tool parser `name`; None where there is none."""
    # Only a known name becomes a path: it may come from a configuration.
    return (files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8") if name in names() else None
