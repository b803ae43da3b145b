"""The Jinja environment of Hugging Face's chat templates, which is also vLLM's, without transformers.

Source: `_compile_jinja_template` in transformers/utils/chat_template_utils.py (5.23): sandbox, `trim_blocks`,
`lstrip_blocks`, loop controls, the `generation` tag, `raise_exception`, `strftime_now`, `tojson`, and a namespace that
keeps no underscored names.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


@lru_cache(maxsize=64)
def compiled(template: str) -> Template:
    """`template`, compiled; the last 64 are cached.

    Raises:
        jinja2.TemplateSyntaxError: invalid Jinja.
    """
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda pattern: datetime.now().strftime(pattern),
        namespace=_Namespace,
        dict=_new_dict,
    )
    return environment


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training, and renders that text here."""

    tags = {"generation"}  # noqa: RUF012 (a set in Jinja's own base class)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    def __init__(*args: Any, **attributes: Any) -> None:  # an attribute may be called `self`
        for name in dict(*args[1:], **attributes):
            _refuse_underscore(name)
        Namespace.__init__(*args, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace keeps no underscored names, but {name!r} was given")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter would escape HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    # A function in place of the class, whose attributes a template could reach.
    return dict(*args, **kwargs)
