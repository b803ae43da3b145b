"""Tables on a terminal and elsewhere."""

from __future__ import annotations

import sys

import pytest

from rayllm.cli.terminal.table import Table


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    made = Table(["model", "kind"], "said below")
    made.add(["a[/b]", "adapter"])
    return made


def columns(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv("COLUMNS", str(count))


def test_drawn_where_it_fits(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    columns(monkeypatch, 60)
    text = table.text()
    assert "─" in text
    assert "a[/b]" in text
    assert "said below" in text


def test_plain_where_it_would_be_cut(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    columns(monkeypatch, 10)
    assert table.text() == "model  kind\na[/b]  adapter"
    columns(monkeypatch, 60)
    monkeypatch.setenv("TERM", "dumb")
    assert table.text() == "model  kind\na[/b]  adapter"
