"""The page of messages names messages that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADINGS = re.findall(r"^### `(.*)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)


@cache
def messages() -> list[str]:
    """Every text of the package, with … for what is put in."""
    found = []
    for path in (ROOT / "rayllm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_message_is_said_somewhere(heading: str) -> None:
    parts = [part for part in re.split("…|`", heading) if part.strip()]
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in parts), re.DOTALL)
    assert any(pattern.search(message) for message in messages())


def test_the_page_has_messages() -> None:
    assert len(HEADINGS) > 15
    assert len(set(HEADINGS)) == len(HEADINGS)
