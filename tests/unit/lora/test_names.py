"""Names of adapters."""

from __future__ import annotations

import pytest

from rayllm.lora import AdapterName, parse_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("org/a:x", AdapterName("org/a", "x")),
        ("q:7b:x", AdapterName("q:7b", "x")),
        ("q:7b", AdapterName("q", "7b")),
        ("org/a", None),
        ("other:x", None),
        ("org/a:", None),
        ("org/a:x/y", None),
        ("org/a:..", None),
        ("org/a:x..y", None),
        ("org/a:.x", None),
        ("org/a:x\n", None),
        ("org/a:x\x00", None),
        ("org/a:" + "x" * 129, None),
    ],
)
def test_longest_base_wins_and_invalid_names_are_none(name: str, meant: AdapterName | None) -> None:
    assert parse_name(name, ["org/a", "q", "q:7b"]) == meant
