"""Chat templates for tool calling, for model families whose own template lacks tools or refuses vLLM's messages.

A template is named after the vLLM tool parser that parses its calls. Each is one file, since vLLM takes a chat template
as one text. Process: any.
"""

from importlib.resources import files

_SUFFIX = ".jinja"


def names() -> tuple[str, ...]:
    """The tool parsers that have a template here, in alphabetical order."""
    filenames = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in filenames if name.endswith(_SUFFIX)))


def read(name: str) -> str | None:
    """The chat template for a tool parser; None for an unknown parser."""
    # Only a known name becomes a path: names come from configurations.
    return (files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8") if name in names() else None
