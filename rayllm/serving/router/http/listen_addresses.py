"""The addresses on which clients can reach the application."""

from __future__ import annotations

import asyncio

from ray.serve.config import ProxyLocation

from rayllm.cluster.ray_internals import serve_client
from rayllm.config import RouterConfig


async def listening_hosts(config: RouterConfig) -> list[str]:
    """The hosts on which the routers, or Ray Serve's proxies, listen.

    Args:
        config: the router's configuration.
    """
    client = serve_client()
    details = await asyncio.to_thread(client.get_serve_details)
    own = [config.address[0]] if config.address else []
    # Without proxies, Serve's address is the routers', unless they have their own.
    has_proxies = details["proxy_location"] != ProxyLocation.Disabled
    return [*own, client.http_config.host or "127.0.0.1"] if has_proxies or not own else own
