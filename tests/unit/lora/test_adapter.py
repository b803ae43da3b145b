"""Names of adapters."""

from __future__ import annotations

import pytest

from rayllm.lora import Adapter, parse_adapter


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("org/a:x", Adapter("org/a", "x")),
        ("q:7b:x", Adapter("q:7b", "x")),
        ("q:7b", Adapter("q", "7b")),
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
def test_longest_base_wins_and_invalid_names_are_none(name: str, meant: Adapter | None) -> None:
    assert parse_adapter(name, ["org/a", "q", "q:7b"]) == meant
