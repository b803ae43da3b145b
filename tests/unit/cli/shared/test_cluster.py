"""The Ray cluster that a command works on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayllm.cli.shared.cluster import connect
from rayllm.core.errors import ClusterError

# Ray reads the token in a process once, so each look is one of a process of its own.
_FIND = """
import json, os, sys
from rayllm.cli.shared.cluster import find
from ray._raylet import AuthenticationMode, get_authentication_mode
found = find(sys.argv[1])
print(json.dumps([found, get_authentication_mode() == AuthenticationMode.TOKEN]))
"""


@pytest.fixture
def listening() -> Iterator[str]:
    """An address where somebody listens."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield f"127.0.0.1:{made.getsockname()[1]}"


def found(address: str, home: Path, **variables: str) -> tuple[str, bool]:
    """The address that a command would join, and whether it would show a token there."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", _FIND, address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=clean | {"HOME": str(home)} | variables,
    )
    joined, with_token = json.loads(done.stdout)
    return joined, with_token


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_named_cluster_is_shown_the_token_of_the_home_folder(
    by_variable: bool, listening: str, tmp_path: Path
) -> None:
    variables = {"RAY_ADDRESS": listening} if by_variable else {}
    asked = "auto" if by_variable else listening
    assert found(asked, tmp_path, **variables) == (listening, False)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f" * 32)
    assert found(asked, tmp_path, **variables) == (listening, True)
    assert found(asked, tmp_path, **variables, RAY_AUTH_MODE="disabled") == (listening, False)


def test_the_hint_for_a_cluster_that_does_not_answer_is_true_of_run_with_an_address() -> None:
    with pytest.raises(ClusterError, match=r"hint: .* `rayllm run` needs none without it\.$"):
        connect("127.0.0.1:1", verbose=True)
