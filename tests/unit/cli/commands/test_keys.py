"""`rayllm keys`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rayllm.access import KeyFile
from rayllm.cli.commands.keys import command
from rayllm.core.errors import AuthenticationError, ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--file", str(path), *arguments], catch_exceptions=False)


def test_a_key_is_printed_once_and_not_kept(path: Path) -> None:
    result = run(path, "create", "--name", "alice", "--models", "m, m:*")
    key = result.stdout.removesuffix("\n")
    assert key.startswith("sk-rayllm-")
    assert "\n" not in key
    assert key not in path.read_text()
    assert key.removeprefix("sk-rayllm-") not in path.read_text()
    assert KeyFile(str(path)).load().keyring.find(key).models == ("m", "m:*")


def test_a_key_has_labels(path: Path) -> None:
    key = run(path, "create", "--name", "alice", "--label", "team=search", "--label", "stage=test 1").stdout.strip()
    assert KeyFile(str(path)).load().keyring.find(key).labels == {"team": "search", "stage": "test 1"}
    assert "team=search, stage=test 1" in run(path, "list").stdout
    [listed] = json.loads(run(path, "list", "--json").stdout)
    assert listed["labels"] == {"team": "search", "stage": "test 1"}


def test_a_rotated_key_has_the_same_rights(path: Path) -> None:
    old = run(path, "create", "--name", "alice", "--tenant", "team", "--admin").stdout.strip()
    new = run(path, "rotate", "alice").stdout.strip()
    keyring = KeyFile(str(path)).load().keyring
    assert (keyring.find(new).tenant, keyring.find(new).is_admin) == ("team", True)
    with pytest.raises(AuthenticationError):
        keyring.find(old)


def test_a_revoked_key_is_gone(path: Path) -> None:
    key = run(path, "create", "--name", "alice").stdout.strip()
    run(path, "create", "--name", "bob")
    run(path, "revoke", "alice")
    file = KeyFile(str(path))
    assert [each.name for each in file.load().keys] == ["bob"]
    with pytest.raises(AuthenticationError):
        file.load().keyring.find(key)


def test_they_are_listed_without_their_hashes(path: Path) -> None:
    run(path, "create", "--name", "alice", "--expires", "30")
    run(path, "create", "--name", "bob", "--expires", "2020-01-31T00:00:00Z", "--models", "m")
    hashes = [key.hash for key in KeyFile(str(path)).load().keys]
    text, listed = run(path, "list").stdout, json.loads(run(path, "list", "--json").stdout)
    assert [row.split()[0] for row in text.splitlines()] == ["name", "alice", "bob"]
    assert "2020-01-31 00:00Z (expired)" in text
    assert [(each["name"], each["expired"], each["models"]) for each in listed] == [
        ("alice", False, None),
        ("bob", True, ["m"]),
    ]
    assert not any(each in text + json.dumps(listed) for each in hashes)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "--name", "alice"), "there is a key `alice` already"),
        (("create", "--name", "a b"), "name: must be letters"),
        (("create", "--name", "c", "--label", "team"), "--label: `team` must be NAME=VALUE"),
        (("create", "--name", "c", "--label", "a=1", "--label", "a=2"), "--label: `a=2` must be"),
        (("create", "--name", "c", "--label", "a=b=c"), "labels: `a` must be at most 64"),
        (
            ("create", "--name", "c", "--expires", "tomorrow"),
            "--expires: `tomorrow` must be a number of days, or a time such as",
        ),
        (("create", "--name", "c", "--expires", "2027-01-31T00:00:00"), "expires: needs a time zone"),
        (("revoke", "alise"), "there is no key `alise`; did you mean `alice`?"),
        (("rotate", "nobody"), "there is no key `nobody`."),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(path: Path, arguments: tuple[str, ...], says: str) -> None:
    run(path, "create", "--name", "alice")
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        run(path, *arguments)
    assert says in caught.value.message
    assert path.read_bytes() == before
