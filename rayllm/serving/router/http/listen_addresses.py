"""The addresses on which clients can reach the application."""

import asyncio

import ray
from ray.serve.config import ProxyLocation

from rayllm.cluster.ray_internals import serve_controller
from rayllm.config import RouterConfig


async def listening_hosts(config: RouterConfig) -> list[str]:
    """The hosts on which the routers, or Ray Serve's proxies, listen."""
    return [host for _, host in await asyncio.to_thread(listening_addresses, config)]


def listening_addresses(config: RouterConfig) -> list[tuple[str, str]]:
    """Hosts with the configuration keys that set them; Ray Serve's only while Serve runs. Blocks."""
    own = [("router.listen", config.address[0])] if config.address else []
    client = serve_controller(required=False) if ray.is_initialized() else None
    if client is None:
        return own
    # Without proxies, Serve's address is the routers', unless they have their own.
    has_proxies = client.get_serve_details()["proxy_location"] != ProxyLocation.Disabled
    return [*own, ("http_options.host", client.http_config.host or "127.0.0.1")] if has_proxies or not own else own
