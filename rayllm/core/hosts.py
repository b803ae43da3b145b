"""Hosts and ports in configurations and URLs."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host is reachable from this machine only. Names other than `localhost` are not resolved."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """`host:port`, with IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
