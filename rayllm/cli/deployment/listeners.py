"""Addresses that `rayllm run` listens on."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace
from typing import Any

from rayllm.cli.deployment.application import Application
from rayllm.errors import ClusterError
from rayllm.hosts import is_loopback, join_address
from rayllm.serving.router.listener.listener import is_kept

DEFAULT_ADDRESS: dict[str, Any] = {"host": "127.0.0.1", "port": 8000}
"""Where a service listens that says nothing else."""
# Seconds in which the socket of a service that has been killed goes away.
_ENDING_S = 5.0
# Wildcard address → loopback address for a browser or curl.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True)
class Listener:
    """An address, and the key that sets it."""

    key: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """URL on this machine."""
        return f"http://{join_address(_WILDCARDS.get(self.host, self.host), self.port)}"

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def with_address(application: Application, host: str | None, port: int | None) -> Application:
    """The application with another host or port; None keeps that of its file, or the default."""
    options = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    http = (
        DEFAULT_ADDRESS | {key: value for key, value in application.http_options.items() if value is not None} | options
    )
    router = application.config.router
    if options and router.address and _has_no_proxies(application):
        own_host, own_port = router.address
        listen = join_address(own_host if host is None else host, own_port if port is None else port)
        router = router.model_copy(update={"listen": listen})
    config = application.config.model_copy(update={"router": router})
    return replace(application, config=config, http_options=http)


def letting_anyone_in(application: Application) -> Application:
    """The application as one that asks for no keys, wherever it listens."""
    router = application.config.router.model_copy(update={"allow_anyone": True})
    return replace(application, config=application.config.model_copy(update={"router": router}))


def listeners(application: Application) -> list[Listener]:
    """The addresses of an application: the routers' own, then that of Ray Serve's proxies."""
    routers, http = application.config.router.address, application.http_options
    addresses = [Listener("router.listen", *routers)] if routers else []
    if routers is None or not _has_no_proxies(application):
        addresses.append(Listener("http_options.host", http["host"], http["port"]))
    return addresses


def check_free(addresses: list[Listener]) -> None:
    """Refuse addresses that this machine cannot listen on.

    Raises:
        ClusterError: names the address, and says what to do.
    """
    deadline = time.monotonic() + _ENDING_S
    for listener in addresses:
        while fault := _fault(listener):
            # Of a service whose processes have been killed, the socket may be there for a moment.
            if time.monotonic() > deadline or not is_kept(listener.host, listener.port):
                hint = "Stop what uses it, or choose another --port."
                raise ClusterError(f"cannot listen on {listener}: {fault}. {hint}")
            time.sleep(0.1)


def _fault(listener: Listener) -> str:
    """Why this machine cannot listen on an address; "" if it can."""
    with socket.socket(socket.AF_INET6 if ":" in listener.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listener.host, listener.port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def reach(addresses: list[Listener], keys: str | None) -> str:
    """A sentence about who can reach the service, of which `keys` is the file of API keys or the issuer of tokens."""
    public = " and ".join(str(listener) for listener in addresses if not is_loopback(listener.host))
    if keys:
        return f"{f'Requests to {public}' if public else 'Requests from this machine'} need a key of {keys}."
    if public:
        return f"Anyone who can reach {public} can use the models: there are no API keys."
    return "Only this machine can reach it, since there are no API keys."


def _has_no_proxies(application: Application) -> bool:
    return application.proxy_location == "Disabled"
