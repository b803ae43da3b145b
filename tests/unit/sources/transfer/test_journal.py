"""The journal that lets another process resume a download."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.sources.items import Item
from rayllm.sources.transfer import journal as module
from rayllm.sources.transfer.journal import Journal

OLD = Item("a b/w.bin", "m/w.bin", 100, "v-1")
NEW = Item("a b/w.bin", "m/w.bin", 100, "v-2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def written(path: Path, *items: Item) -> None:
    journal = Journal(path, 10)
    for item in items:
        journal.begin(item)
        journal.add_part(item, 0)
    journal.close()


def test_parts_are_read_by_the_next_process(path: Path) -> None:
    written(path, OLD)
    journal = Journal(path, 10)
    assert journal.has_part(OLD, 0)
    assert not journal.has_part(OLD, 10)
    assert not journal.has_part(NEW, 0)


def test_overwritten_version_has_no_parts(path: Path) -> None:
    written(path, OLD)
    journal = Journal(path, 10)
    # Killed right after the new version was begun.
    journal.begin(NEW)
    assert not journal.has_part(OLD, 0)
    assert not Journal(path, 10).has_part(OLD, 0)


def test_reset_is_persistent(path: Path) -> None:
    written(path, OLD)
    Journal(path, 10).reset(OLD)
    assert not Journal(path, 10).has_part(OLD, 0)


def test_incomplete_line_is_ignored(path: Path) -> None:
    written(path, OLD)
    path.write_bytes(path.read_bytes() + b"10 v-1 a b/w.b")
    journal = Journal(path, 10)
    assert not journal.has_part(OLD, 10)
    journal.add_part(OLD, 20)
    assert Journal(path, 10).has_part(OLD, 0)
    assert Journal(path, 10).has_part(OLD, 20)


def test_other_part_size_or_boot_discards_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, OLD)
    assert not Journal(path, 20).has_part(OLD, 0)
    written(path, OLD)
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    assert not Journal(path, 10).has_part(OLD, 0)
