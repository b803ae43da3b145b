"""The hosts on which the application can be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rayllm.config import RouterConfig
from rayllm.serving.router.http import server
from rayllm.serving.router.http.server import listening_hosts


@dataclass
class HttpConfig:
    """Ray Serve's HTTP options, as far as they matter here."""

    host: str | None


@dataclass
class Client:
    """Ray Serve's client, as far as it matters here."""

    http_config: HttpConfig
    proxies: str

    def get_serve_details(self) -> dict[str, Any]:
        return {"proxy_location": self.proxies}


@pytest.mark.parametrize(
    ("listen", "proxies", "host", "hosts"),
    [
        (None, "Disabled", "0.0.0.0", ["0.0.0.0"]),
        (None, "Disabled", None, ["127.0.0.1"]),
        (None, "EveryNode", "0.0.0.0", ["0.0.0.0"]),
        ("127.0.0.1:1", "HeadOnly", "0.0.0.0", ["127.0.0.1", "0.0.0.0"]),
        # Nobody listens on Serve's address then.
        ("[::1]:1", "Disabled", "0.0.0.0", ["::1"]),
    ],
)
async def test_who_listens_where(
    monkeypatch: pytest.MonkeyPatch, listen: str | None, proxies: str, host: str | None, hosts: list[str]
) -> None:
    monkeypatch.setattr(server, "serve_controller", lambda required: Client(HttpConfig(host), proxies))
    monkeypatch.setattr(server.ray, "is_initialized", lambda: True)
    assert await listening_hosts(RouterConfig(listen=listen)) == hosts
