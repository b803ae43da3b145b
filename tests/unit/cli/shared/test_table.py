"""Tables of plain columns."""

from __future__ import annotations

from rayllm.cli.shared.terminal import table


def test_columns_stand_under_their_headings() -> None:
    assert (
        table(["model", "kind"], [["a", "adapter"], ["long-name", ""]])
        == "model      kind\na          adapter\nlong-name"
    )
