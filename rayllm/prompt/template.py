"""Compiles a `prompt_format` to the Jinja chat template that vLLM, batch and the command line render."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from rayllm.prompt.format import PromptFormat
from rayllm.prompt.pieces import Placeholder, parse

if TYPE_CHECKING:
    from jinja2 import Template

CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""What Hugging Face appends to the content of the last message, to find where to cut the prompt.

Source: `render_jinja_template` in transformers/utils/chat_template_utils.py. Our template strips the content before
the tag and leaves the tag whole; else the cut would lose white space that belongs to the role's own template."""


def compile_template(fmt: PromptFormat, *, bos: str | None = None) -> str:
    """The Jinja chat template that renders messages as `fmt` says, with `bos` in place of its own if that is given.

    Made for the environment of Hugging Face's chat templates, which vLLM uses: besides Jinja itself it needs the global
    `raise_exception` and the filter `tojson`. It reads `messages`, `tools`, `add_generation_prompt`, and `omit_bos`:
    true leaves the BOS out, for a prompt that is tokenized with special tokens.
    """
    return _prompt_format().render(
        fmt=fmt,
        bos=fmt.bos if bos is None else bos,
        default_system=fmt.default_system_message.strip() if fmt.strip_whitespace else fmt.default_system_message,
        continue_tag=CONTINUE_TAG,
        quoted=_quoted,
        joined=_joined,
        around=_around,
    )


@cache
def _prompt_format() -> "Template":
    """The file that becomes a chat template."""
    from jinja2 import Environment, StrictUndefined  # deferred: Jinja is needed for the first prompt only

    environment = Environment(
        *("<%", "%>", "<<", ">>", "<#", "#>"), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    return environment.from_string(files(__package__).joinpath("prompt_format.jinja").read_text(encoding="utf-8"))


def _joined(template: str, **values: str) -> str:
    """A template as an expression in parentheses; `values` holds the expression of each placeholder."""
    return f"({' ~ '.join(_terms(template, values))})"


def _around(content: str, template: str, mark: str = "mark", **values: str) -> str:
    """A role's template around `content`, as an expression. The last occurrence of that carries the cut mark."""
    terms = _terms(template, {"instruction": content, **values})
    last = max(index for index, term in enumerate(terms) if term == f"({content})")
    return " ~ ".join([*terms[: last + 1], mark, *terms[last + 1 :]])


def _terms(template: str, values: Mapping[str, str]) -> list[str]:
    pieces = parse(template, values).pieces
    return [f"({values[piece.name]})" if isinstance(piece, Placeholder) else _quoted(piece) for piece in pieces]


def _quoted(text: str) -> str:
    # A JSON string is a Jinja string. Only with ensure_ascii off: Jinja does not join the surrogates of "\ud83d\ude00".
    return json.dumps(text, ensure_ascii=False)
