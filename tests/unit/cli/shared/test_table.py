"""Tables of plain columns."""

from __future__ import annotations

from rayllm.cli.shared.terminal import first_names, table


def test_columns_stand_under_their_headings() -> None:
    assert (
        table(["model", "kind"], [["a", "adapter"], ["long-name", ""]])
        == "model      kind\na          adapter\nlong-name"
    )


def test_of_many_names_the_first_are_listed() -> None:
    assert first_names([]) == ""
    assert first_names(list("abcdefghij")) == "a, b, c, d, e, f, g, h, i, j"
    assert first_names([*"abcdefghij", *map(str, range(1990))]) == "a, b, c, d, e, f, g, h, i, j and 1,990 more"
