"""The folder of sockets, which nobody else may have."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayllm.core.errors import ClusterError
from rayllm.core.sockets import socket_folder

NAME = f"rayllm-{os.getuid()}"


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folder for temporary files, and that of a login."""
    made = [Path(tempfile.mkdtemp(dir="/tmp")) for _ in range(2)]
    monkeypatch.setattr(tempfile, "tempdir", str(made[0]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(made[1]))
    yield made
    for each in made:
        shutil.rmtree(each)


def squat(folder: Path, how: str) -> None:
    """Take the name in a folder, as another user could."""
    if how == "file":
        (folder / NAME).write_text("")
    elif how == "link":
        (folder / "elsewhere").mkdir(mode=0o700)
        (folder / NAME).symlink_to(folder / "elsewhere")
    else:
        (folder / NAME).mkdir()
        (folder / NAME).chmod(0o755)


def test_it_is_only_this_users(folders: list[Path]) -> None:
    assert socket_folder() == socket_folder() == folders[0] / NAME
    assert (folders[0] / NAME).stat().st_mode & 0o777 == 0o700
    assert list(folders[1].iterdir()) == []


@pytest.mark.parametrize("how", ["file", "link", "open"])
def test_a_name_that_is_taken_leads_to_the_folder_of_the_login(
    folders: list[Path], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    squat(folders[0], how)
    assert socket_folder() == folders[1] / NAME
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders[1] / "none"))
    with pytest.raises(ClusterError, match=rf"{folders[0]}/{NAME} must be a directory that only this user can access"):
        socket_folder()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with pytest.raises(ClusterError, match="set TMPDIR"):
        socket_folder()


def test_a_path_must_be_short_enough_for_a_socket(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    long = folders[0] / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert socket_folder() == folders[1] / NAME
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(ClusterError, match="at most 66 bytes"):
        socket_folder()
