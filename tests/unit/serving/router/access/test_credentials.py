"""Keys and tokens of a service, through changes of its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.access import ANYONE, Caller, Key, KeyFile
from rayllm.access.key import key_hash
from rayllm.access.limits import Limits
from rayllm.config import RouterConfig
from rayllm.errors import AuthenticationError
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
        limits = Limits(requests_per_minute=5)
        assert credentials.caller_named("oidc:dora", ("m",)) == Caller("oidc:dora", models=("m",), limits=limits)
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
