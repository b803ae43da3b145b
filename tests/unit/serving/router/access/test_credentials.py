"""Keys and tokens of a service, through changes of its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.access import ANYONE, Caller, Key, KeyFile
from rayllm.access.key import key_hash
from rayllm.config import RouterConfig
from rayllm.core.errors import AuthenticationError
from rayllm.serving.router.access.credentials import Credentials
from tests.issuer import listening


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file of keys, with one of alice's."""
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="alice", hash=key_hash("a", file.salt), models=("m",)))
    return file.uri


async def test_without_keys_names_are_anyones() -> None:
    credentials = Credentials()
    await credentials.configure(RouterConfig())
    assert credentials.caller_named("", None) == credentials.caller_named("alice", None) == ANYONE
    assert credentials.issuer is None


async def test_names_have_the_rights_of_their_keys(file: str) -> None:
    credentials = Credentials()
    await credentials.configure(RouterConfig(keys=file))
    assert credentials.caller_named("alice", ("other",)) == Caller("alice", "alice", ("m",))
    assert credentials.caller_named("", None) == ANYONE
    with pytest.raises(AuthenticationError):
        credentials.caller_named("bob", None)
    await credentials.stop()


async def test_names_of_tokens_have_the_rights_that_are_given(file: str) -> None:
    with listening() as issuer:
        oidc = {"issuer": issuer.url, "audience": "rayllm", "requests_per_minute": 5}
        credentials = Credentials()
        await credentials.configure(RouterConfig.model_validate({"keys": file, "oidc": oidc}))
        limits = {"requests": 5}
        assert credentials.caller_named("oidc:dora", ("m",), "t") == Caller("oidc:dora", "t", ("m",), limits=limits)
        await credentials.stop()


async def test_the_last_valid_keys_outlive_a_configuration_that_names_the_same_file(file: str) -> None:
    credentials = Credentials()
    await credentials.configure(RouterConfig(keys=file))
    Path(file).write_text("keys: [")
    await credentials.configure(RouterConfig(keys=file, queue_timeout_s=5))
    assert credentials.keyring.find("a").name == "alice"
    await credentials.configure(RouterConfig())
    with pytest.raises(AuthenticationError):
        credentials.keyring.find("a")


@pytest.mark.parametrize("is_limited", [False, True])
async def test_limits_of_keys_and_tokens_are_noticed(tmp_path: Path, is_limited: bool) -> None:
    limit = {"requests_per_minute": 5} if is_limited else {}
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="alice", hash=key_hash("a", file.salt)))
        keys.append(Key.model_validate({"name": "bob", "hash": key_hash("b", file.salt), **limit}))
    credentials = Credentials()
    assert not credentials.have_limits
    await credentials.configure(RouterConfig(keys=file.uri))
    assert credentials.have_limits == is_limited
    with listening() as issuer:
        oidc = {"issuer": issuer.url, "audience": "rayllm", **limit}
        await credentials.configure(RouterConfig.model_validate({"oidc": oidc}))
        assert credentials.have_limits == is_limited
        await credentials.stop()


async def test_a_file_of_keys_that_cannot_be_read_has_no_limits(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: [")
    credentials = Credentials()
    await credentials.configure(RouterConfig(keys=str(tmp_path / "keys.yaml")))
    assert not credentials.have_limits
    await credentials.stop()
