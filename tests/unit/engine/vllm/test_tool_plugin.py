"""Users' tool parser plugins, new and old."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from rayllm.core.errors import ConfigError
from rayllm.engine.vllm.tool_plugin import load_tool_plugin

HEAD = "from tests.unit.engine.vllm.test_tool_plugin import Manager, Parser\n"


class Parser:
    """A fake of vLLM's base class."""

    def __init__(self, tokenizer: Any, tools: Any = None) -> None:
        self.tokenizer = tokenizer
        self.tools = tools or []


class Manager:
    """A fake of vLLM's registry."""

    lazy_parsers: ClassVar[dict[str, tuple[str, str]]] = {}
    tool_parsers: ClassVar[dict[str, type]] = {}

    @classmethod
    def register_module(cls, name: Any, module: Any = None) -> Any:
        if module is not None:
            cls.tool_parsers[name] = module
            return module

        def decorate(parser: type) -> type:
            for one in [name] if isinstance(name, str) else name:
                cls.lazy_parsers[one] = (parser.__module__, parser.__name__)
            return parser

        return decorate


@pytest.fixture(autouse=True)
def _empty() -> None:
    Manager.lazy_parsers = {"hermes": ("somewhere", "Hermes")}
    Manager.tool_parsers = {}


def plugin(folder: Path, text: str) -> str:
    path = folder / "json.py"  # a name that must not stand in for a library's
    path.write_text(HEAD + text)
    return str(path)


def test_an_old_constructor_is_given_the_tokenizer_alone(tmp_path: Path) -> None:
    text = "@Manager.register_module(['a', 'b'])\nclass Old(Parser):\n    def __init__(self, tokenizer):\n"
    load_tool_plugin(plugin(tmp_path, text + "        super().__init__(tokenizer)\n"), Manager)
    assert Manager.tool_parsers.keys() == {"a", "b"}
    made = Manager.tool_parsers["a"]("tokenizer", ["tool"])
    assert (made.tokenizer, made.tools, type(made).__name__) == ("tokenizer", ["tool"], "Old")
    assert Manager.lazy_parsers == {"hermes": ("somewhere", "Hermes")}


@pytest.mark.parametrize("signature", ["self, tokenizer, tools=None", "self, *args", None])
def test_todays_constructor_is_left_alone(tmp_path: Path, signature: str | None) -> None:
    body = f"    def __init__({signature}):\n        pass\n" if signature else "    pass\n"
    load_tool_plugin(plugin(tmp_path, f"@Manager.register_module('a')\nclass New(Parser):\n{body}"), Manager)
    assert Manager.lazy_parsers["a"][1] == "New"
    assert Manager.tool_parsers == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "json.py fails: ZeroDivisionError"),
        ("import nothing_like_it", "nothing_like_it"),
        ("x = 1", "registers no tool parser"),
        (
            "def f():\n    @Manager.register_module('a')\n    class Hidden(Parser):\n        pass\nf()",
            "not a class at the",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_tool_plugin(plugin(tmp_path, text), Manager)
