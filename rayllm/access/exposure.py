"""Who can reach a service without keys."""

from collections.abc import Iterable

from rayllm.config import RouterConfig
from rayllm.core.errors import ConfigError
from rayllm.core.hosts import is_loopback


def serves_page(router: RouterConfig, hosts: Iterable[str]) -> bool:
    """Whether a service has the page at `/ui`: as `router.ui` says; if that is null, with keys or on loopback only."""
    return router.ui if router.ui is not None else router.needs_keys or all(is_loopback(host) for host in hosts)


def check_private(router: RouterConfig, addresses: Iterable[tuple[str, str]]) -> None:
    """Refuse hosts that other machines can reach, without keys or `router.allow_anyone`. Raises ConfigError.

    `addresses` are the configuration key of each host, and the host.
    """
    if router.needs_keys or router.allow_anyone:
        return
    for key, host in addresses:
        if not is_loopback(host):
            raise ConfigError(
                f"{key}: {host} would let anyone on the network use the models, since there are no API keys. Set "
                "router.keys, listen on 127.0.0.1, or say router.allow_anyone: true (`rayllm run --allow-anyone`) if "
                "something in front authenticates callers."
            )
