"""Addresses as people write them."""

from __future__ import annotations

import pytest

from rayllm.client.api.address import Address
from rayllm.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("http://h:8000", "http://h:8000/v1/models"),
        ("http://h:8000/", "http://h:8000/v1/models"),
        ("http://h:8000/v1", "http://h:8000/v1/models"),
        ("http://h:8000/v1/ ", "http://h:8000/v1/models"),
        ("h:8000", "http://h:8000/v1/models"),
        ("localhost", "http://localhost/v1/models"),
        ("https://h/llm", "https://h/llm/v1/models"),
        ("https://h/llm/v1", "https://h/llm/v1/models"),
        ("https://h/api/v4", "https://h/api/v4/models"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/models"),
    ],
)
def test_an_address_may_end_with_the_version_or_not(text: str, models: str) -> None:
    assert Address.parse(text).api("models") == models


def test_what_is_beside_the_version_is_found_from_either() -> None:
    assert str(Address.parse("http://h/llm/v1")) == str(Address.parse("http://h/llm")) == "http://h/llm"


@pytest.mark.parametrize("text", ["", "http://", "ftp://h", "http://h:no", "http://h:99999", "http://h?a=b", "//"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--api-key-env") as refused:
        Address.parse("http://me:secret@h")
    assert "secret" not in refused.value.message


def test_the_environments_proxy_is_taken_for_others_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near")
    hosts = {host: Address.parse(host).proxy for host in ("far:80", "near:80", "127.0.0.1:80", "[::1]:80", "localhost")}
    assert hosts.pop("far:80") == "http://proxy:3128"
    assert set(hosts.values()) == {None}
