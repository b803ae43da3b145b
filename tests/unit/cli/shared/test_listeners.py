"""Where `rayllm run` listens, what it prints, and what it refuses."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from rayllm.access.exposure import check_private
from rayllm.cli.shared.application import Application, check_free, listeners, reach, with_options
from rayllm.config import load_app
from rayllm.core.errors import ClusterError, ConfigError
from rayllm.core.hosts import is_loopback


def application(listen: str | None = None, **keys: Any) -> Application:
    """An application of one model, its options given."""
    models = [{"model_loading_config": {"model_id": "m"}}]
    return Application(load_app({"llm_configs": models, "router": {"listen": listen}}), **keys)


@pytest.mark.parametrize(
    ("given", "host", "port", "addresses"),
    [
        (application(), None, None, ["127.0.0.1:8000"]),
        (application(http_options={"host": None, "port": 9}), None, None, ["127.0.0.1:9"]),
        (application(), "::1", 9, ["[::1]:9"]),
        (application("0.0.0.0:9000"), None, None, ["0.0.0.0:9000"]),
        (application("[::1]:9000"), None, 7, ["[::1]:7"]),
        (application("0.0.0.0:9000"), "127.0.0.1", None, ["127.0.0.1:9000"]),
        # Proxies listen beside the routers: the options are theirs.
        (application("10.0.0.1:9000", proxy_location="HeadOnly"), None, 7, ["10.0.0.1:9000", "127.0.0.1:7"]),
    ],
)
def test_what_is_listened_on(given: Application, host: str | None, port: int | None, addresses: list[str]) -> None:
    assert [str(listener) for listener in listeners(with_options(given, host, port))] == addresses


def check(given: Application) -> None:
    found = listeners(with_options(given))
    check_private(given.config.router, [(each.key, each.host) for each in found])


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (application("0.0.0.0:9000"), "router.listen: 0.0.0.0 would let anyone"),
        (application("127.0.0.1:9", http_options={"host": "::"}, proxy_location="HeadOnly"), "http_options.host: ::"),
        (application("example.com:9"), "router.listen: example.com"),
    ],
)
def test_an_address_that_others_reach_is_refused_by_its_key(given: Application, key: str) -> None:
    found = listeners(with_options(given))
    with pytest.raises(ConfigError, match=key):
        check(given)
    check(with_options(given, allow_anyone=True))
    assert str(next(each for each in found if not is_loopback(each.host))) in reach(found, None)
    assert "Only this machine" not in reach(found, None)
    assert reach(found, "/keys.yaml").endswith("need a key of /keys.yaml.")


def test_a_loopback_address_is_private() -> None:
    for listen in ("127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"):
        found = listeners(with_options(application(listen)))
        check(application(listen))
        assert reach(found, None) == "Only this machine can reach it, since there are no API keys."
        assert reach(found, "/keys.yaml") == "Requests from this machine need a key of /keys.yaml."


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_port_in_use_is_said(host: str, family: socket.AddressFamily) -> None:
    with socket.socket(family) as taken:
        taken.bind((host, 0))
        taken.listen()
        found = listeners(with_options(application(), host, taken.getsockname()[1]))
        with pytest.raises(ClusterError, match=r"cannot listen on .*: Address already in use"):
            check_free(found)
    check_free(found)


def test_urls_lead_to_this_machine() -> None:
    found = [listeners(with_options(application(), host, 1))[0].url for host in ("0.0.0.0", "::", "::1", "10.0.0.1")]
    assert found == ["http://127.0.0.1:1", "http://[::1]:1", "http://[::1]:1", "http://10.0.0.1:1"]
