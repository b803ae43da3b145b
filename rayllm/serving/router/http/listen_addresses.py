"""On which hosts the application can be reached."""

from __future__ import annotations

import asyncio

from ray.serve.config import ProxyLocation

from rayllm.cluster.ray_internals import serve_client
from rayllm.config import RouterConfig


async def listening_hosts(config: RouterConfig) -> list[str]:
    """The hosts that the routers listen on themselves, and those of Ray Serve's proxies.

    Args:
        config: of the router.
    """
    client = serve_client()
    details = await asyncio.to_thread(client.get_serve_details)
    own = [config.address[0]] if config.address else []
    # Where there are no proxies, Serve's address is the routers', unless they have one of their own.
    has_proxies = details["proxy_location"] != ProxyLocation.Disabled
    return [*own, client.http_config.host or "127.0.0.1"] if has_proxies or not own else own
