"""Files that appear whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.cli.shared.terminal import FileError, write_files


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_files({tmp_path / "a" / "b.yaml": "b", tmp_path / "c.yaml": "ü"})
    assert (tmp_path / "c.yaml").read_text(encoding="utf-8") == "ü"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b.yaml", "c.yaml"]
    assert (tmp_path / "c.yaml").stat().st_mode & 0o777 == 0o644


def test_what_is_there_stays_and_so_do_the_others(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("old")
    with pytest.raises(FileError, match=r"b: already exists\.\nhint: --force"):
        write_files({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    write_files({tmp_path / "a": "new", tmp_path / "b": "new"}, force=True)
    assert (tmp_path / "b").read_text() == "new"


def test_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written: File exists"):
        write_files({tmp_path / "a": "a", tmp_path / "file" / "b": "b"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
