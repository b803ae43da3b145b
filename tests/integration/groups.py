"""Groups of tests, each run by one of several processes: what `--dist loadgroup` is meant to do.

pytest-xdist 3.8 appends the group to a node's private ID, which pytest 9 does not read any more. Here, the processes
write the groups to a file, which the scheduler reads.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_FILE = "groups_file"


class GroupScheduling(LoadScopeScheduling):
    """Gives each process one group after the other, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        super().__init__(config, log)
        self._file = file
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        """Schedule what all processes have collected."""
        self._groups = self._groups or json.loads(self._file.read_text())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]


class Controller:
    """Plugin of the process that starts the others."""

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="test-groups-")
        os.close(descriptor)
        self._file = Path(name)

    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process where to write the groups."""
        node.workerinput[_FILE] = str(self._file)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling:
        """Replace xdist's scheduler."""
        return GroupScheduling(config, log, self._file)

    def pytest_unconfigure(self) -> None:
        """Remove the file."""
        self._file.unlink()


def write_groups(config: pytest.Config, groups: dict[str, str]) -> None:
    """Tell the scheduler the group of each node ID, if this process is one of several."""
    if file := getattr(config, "workerinput", {}).get(_FILE):
        Path(file).write_text(json.dumps(groups))
