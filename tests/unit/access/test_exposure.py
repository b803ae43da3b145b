"""Services without keys that other machines could reach."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm import build_app
from rayllm.access.exposure import check_private, serves_page
from rayllm.config import RouterConfig
from rayllm.core.errors import ConfigError

PUBLIC = [("router.listen", "127.0.0.1"), ("http_options.host", "0.0.0.0")]


@pytest.mark.parametrize(
    "router", [{"keys": "/k.yaml"}, {"oidc": {"issuer": "https://x", "audience": "a"}}, {"allow_anyone": True}]
)
def test_who_asks_for_keys_or_says_so_may_listen_anywhere(router: dict[str, Any]) -> None:
    check_private(RouterConfig.model_validate(router), PUBLIC)


def test_the_message_names_the_key_and_the_ways_out() -> None:
    with pytest.raises(ConfigError) as refused:
        check_private(RouterConfig(), PUBLIC)
    for part in ("http_options.host: 0.0.0.0", "router.keys", "127.0.0.1", "router.allow_anyone: true"):
        assert part in refused.value.message
    check_private(RouterConfig(), PUBLIC[:1])


def test_no_application_is_built_that_listens_for_everyone() -> None:
    models = [{"model_loading_config": {"model_id": "m", "model_source": "org/m"}}]
    with pytest.raises(ConfigError, match=r"router\.listen: 0\.0\.0\.0 would let anyone"):
        build_app({"llm_configs": models, "router": {"listen": "0.0.0.0:8001"}})


@pytest.mark.parametrize(
    ("router", "hosts", "has_page"),
    [
        ({}, ["127.0.0.1", "::1"], True),
        ({"allow_anyone": True}, ["127.0.0.1", "0.0.0.0"], False),
        ({"keys": "/k.yaml"}, ["0.0.0.0"], True),
        ({"oidc": {"issuer": "https://x", "audience": "a"}}, ["0.0.0.0"], True),
        ({"allow_anyone": True, "ui": True}, ["0.0.0.0"], True),
        ({"ui": False}, ["127.0.0.1"], False),
        ({"keys": "/k.yaml", "ui": False}, ["0.0.0.0"], False),
    ],
)
def test_who_has_the_page(router: dict[str, Any], hosts: list[str], has_page: bool) -> None:
    assert serves_page(RouterConfig.model_validate(router), hosts) == has_page
