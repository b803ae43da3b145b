"""Keys, the file of keys, and what a key may use."""

from __future__ import annotations

import json
import multiprocessing
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.access import ANYONE, Caller, Key, KeyFile, caller_of, new_key
from rayllm.access.key import MAX_LABELS, PREFIX, key_hash
from rayllm.access.key_file import KeyList
from rayllm.core.errors import AuthenticationError, ConfigError, PermissionDeniedError, StorageError

SALT = "5a" * 32


def key(name: str, secret: str = "s", **fields: Any) -> Key:
    return Key(name=name, hash=key_hash(secret, bytes.fromhex(SALT)), **fields)


def ring(*keys: Key) -> Any:
    return KeyList(salt=SALT, keys=keys).keyring


def test_new_keys_are_long_and_differ() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith(PREFIX) and len(key) >= len(PREFIX) + 43 for key in keys)


def test_a_key_that_scrapes_is_no_administrators() -> None:
    assert ring(key("prometheus", "p", scrape=True)).find("p").is_scraper
    with pytest.raises(ValueError, match="`scrape`"):
        key("prometheus", scrape=True, admin=True)


def test_a_key_finds_its_caller() -> None:
    keyring = ring(key("alice", "a", models=("m",)), key("bob", "b", tenant="team", admin=True))
    assert keyring.find("a") == Caller("alice", "alice", ("m",))
    assert keyring.find("b") == Caller("bob", "team", is_admin=True)
    assert keyring.named("bob") == keyring.find("b")


@pytest.mark.parametrize("name", ["priority", "class"])
def test_a_class_has_two_names_in_the_file(tmp_path: Path, name: str) -> None:
    entry = {"name": "alice", "hash": "0" * 64, name: "batch"}
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"salt": SALT, "keys": [entry]}))
    file = KeyFile(str(path))
    # Also once the file has been written anew.
    with file.change():
        assert file.load().keys[0].priority == "batch"
    assert file.load().keys[0].priority == "batch"
    path.write_text(yaml.safe_dump({"salt": SALT, "keys": [entry | {"priority": "batch", "class": "batch"}]}))
    with pytest.raises(ConfigError, match=r"keys\.0\.class"):
        file.load()


@pytest.mark.parametrize("presented", ["", "c", "a ", "A", "ä", "\0", "a" * 257, "a" * 1_000_000])
def test_other_keys_are_refused_and_not_repeated(presented: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        ring(key("alice", "a")).find(presented)
    assert caught.value.status == 401
    assert caught.value.code == "invalid_api_key"
    assert len(caught.value.message) < 200


def test_the_hash_depends_on_the_salt() -> None:
    with pytest.raises(AuthenticationError):
        KeyList(salt="6b" * 32, keys=(key("alice", "a"),)).keyring.find("a")


def test_a_key_stops_when_it_expires() -> None:
    now = datetime.now(UTC)
    assert ring(key("alice", expires=now + timedelta(seconds=60))).find("s").name == "alice"
    with pytest.raises(AuthenticationError, match="`alice` expired"):
        ring(key("alice", expires=now - timedelta(seconds=1))).find("s")


def test_an_expiry_counts_from_its_time_and_not_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = ring(key("alice", expires=datetime.now(UTC) + timedelta(hours=1)))
    keyring.find("s")
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(AuthenticationError):
        keyring.find("s")


@pytest.mark.parametrize(
    ("models", "names", "may"),
    [
        (None, ("m",), True),
        ((), ("m",), False),
        (("m",), ("m",), True),
        (("m",), ("m:pirate",), False),
        (("m:*",), ("m:pirate",), True),
        (("m:*",), ("m",), False),
        (("m*",), ("m:pirate",), True),
        (("alias",), ("alias", "m"), True),
        (("m",), ("alias", "m"), True),
        (("M",), ("m",), False),
    ],
)
def test_which_models_a_key_may_use(models: tuple[str, ...] | None, names: tuple[str, ...], may: bool) -> None:
    assert Caller("a", "a", models).may_use(*names) is may


def test_without_keys_anyone_calls() -> None:
    assert caller_of({"type": "http"}) is ANYONE
    assert ANYONE.may_use("m")
    assert not ANYONE.is_admin


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hash": "sk-rayllm-secret"}, "keys.0.hash: must be 64 hexadecimal digits"),
        ({"name": "a b"}, "keys.0.name: must be letters"),
        ({"name": ""}, "keys.0.name"),
        ({"tenant": "a/../b"}, "keys.0.tenant: must be letters"),
        ({"expires": "2027-01-31"}, "keys.0.expires: needs a time zone"),
        ({"expires": "soon"}, "keys.0.expires"),
        ({"model": ["m"]}, "did you mean `models`?"),
        ({"labels": {"a b": "x"}}, "keys.0.labels: the name `a b` must be"),
        ({"labels": {"n" * 33: "x"}}, "keys.0.labels: the name"),
        ({"labels": {"team": "x" * 65}}, "keys.0.labels: `team` must be at most 64"),
        ({"labels": {"team": "x\n"}}, "keys.0.labels: `team` must be"),
        ({"labels": {"team": 1}}, "keys.0.labels.team"),
        ({"labels": {f"l{n}": "x" for n in range(MAX_LABELS + 1)}}, "keys.0.labels"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"salt": SALT, "keys": [{"name": "a", "hash": "0" * 64, **fields}]}))
    with pytest.raises(ConfigError) as caught:
        KeyFile(str(path)).load()
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert "sk-rayllm-secret" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a mapping with `salt` and `keys`"),
        ("- a", "must be a mapping"),
        ("{", "not valid YAML"),
        ("\xff", "not UTF-8"),
        (f"salt: {SALT}\nsalt: {SALT}\n", "given twice"),
        ("keys: []", "salt: is required"),
        ("salt: short\nkeys: []", "salt:"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        KeyFile(str(path)).load()
    assert says in caught.value.message


@pytest.mark.parametrize("same", [{"name": "a"}, {"hash": "0" * 64}])
def test_names_and_hashes_differ(tmp_path: Path, same: dict[str, str]) -> None:
    path = tmp_path / "keys.yaml"
    keys = [{"name": "a", "hash": "0" * 64}, {"name": "b", "hash": "1" * 64, **same}]
    path.write_text(yaml.safe_dump({"salt": SALT, "keys": keys}))
    with pytest.raises(ConfigError, match=f"two keys have the {next(iter(same))}"):
        KeyFile(str(path)).load()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no such file"):
        KeyFile(str(tmp_path / "keys.yaml")).load()


def test_changes_are_written_and_read_again(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="alice", hash=key_hash("a", file.salt), models=("m",)))
    with file.change() as keys:
        keys.append(Key(name="bob", hash=key_hash("b", file.salt)))
    keyring = KeyFile(file.uri).load().keyring
    assert keyring.find("a").models == ("m",)
    assert keyring.find("b").models is None
    assert set(yaml.safe_load((tmp_path / "keys.yaml").read_text())) == {"salt", "keys"}


def test_the_file_is_its_owners_alone_and_keeps_a_mode_that_it_is_given(tmp_path: Path) -> None:
    file, path = KeyFile(str(tmp_path / "keys.yaml")), tmp_path / "keys.yaml"
    expected = 0o600
    for given in (0o600, 0o640, 0o664):
        with file.change() as keys:
            keys.append(Key(name=f"k{given}", hash=key_hash(f"{given}", file.salt)))
        assert path.stat().st_mode & 0o777 == expected
        path.chmod(expected := given)


def test_a_change_that_fails_leaves_the_file(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="alice", hash=key_hash("a", file.salt)))
    before = (tmp_path / "keys.yaml").read_bytes()
    with pytest.raises(KeyError), file.change() as keys:
        raise KeyError(keys.pop().name)
    assert (tmp_path / "keys.yaml").read_bytes() == before


def test_a_broken_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: [")
    with pytest.raises(ConfigError), KeyFile(str(tmp_path / "keys.yaml")).change():
        pass
    assert (tmp_path / "keys.yaml").read_text() == "keys: ["


def add(path: str, first: int) -> None:
    for number in range(first, first + 10):
        file = KeyFile(path)
        with file.change() as keys:
            keys.append(Key(name=f"k{number}", hash=key_hash(f"s{number}", file.salt)))


def test_processes_that_add_keys_at_once_lose_none(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.yaml")
    context = multiprocessing.get_context("spawn")
    adders = [context.Process(target=add, args=(path, first)) for first in (0, 100)]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    keyring = KeyFile(path).load().keyring
    assert {keyring.find(f"s{number}").name for number in (*range(10), *range(100, 110))} == {
        f"k{number}" for number in (*range(10), *range(100, 110))
    }


def test_many_keys_are_written_as_json_which_is_yaml_too(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys += [Key(name=f"k{number}", hash=f"{number:064x}") for number in range(1001)]
    text = (tmp_path / "keys.yaml").read_text()
    assert json.loads(text)["keys"][7] == {"name": "k7", "hash": f"{7:064x}"}
    assert yaml.load(text, yaml.CSafeLoader) == json.loads(text)
    assert [key.name for key in file.load().keys] == [f"k{number}" for number in range(1001)]


@pytest.mark.parametrize("names", [("secret",), ("secret", "m:secret")])
def test_a_model_that_a_key_may_not_use_is_refused_alike_whether_it_exists(names: tuple[str, ...]) -> None:
    with pytest.raises(PermissionDeniedError) as caught:
        Caller("alice", models=("open",)).check_model(*names)
    assert caught.value.message == "The key `alice` may not use the model `secret`; it may use `open`."
    assert (caught.value.status, caught.value.code, caught.value.param) == (403, "permission_denied", "model")


def test_an_adapter_is_known_by_its_full_name() -> None:
    Caller("alice", models=("m:pirate",)).check_model("pirate", "m:pirate")
    with pytest.raises(PermissionDeniedError):
        Caller("alice", models=("m",)).check_model("m:pirate", "m:pirate")
