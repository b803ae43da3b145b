"""Connect to the Ray cluster that a command works on."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from rayllm.core.errors import ClusterError


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster for the duration of the block.

    Args:
        address: the cluster's address; `auto` is the one on this machine, None one that ends with the block.

    Raises:
        ClusterError: there is no cluster at the address.
    """
    import ray
    from ray import serve

    from rayllm.cluster.ray_internals import hide_worker_count

    was_connected = ray.is_initialized()
    if not was_connected:
        hide_worker_count()
        try:
            # A cluster that ends with the block needs no dashboard.
            options = {"address": find(address)} if address else {"address": "local", "include_dashboard": False}
            ray.init(namespace="serve", log_to_driver=False, logging_level="ERROR", **options)
        except (OSError, ValueError, RuntimeError) as error:
            where = "on this machine" if address == "auto" else f"at {address}"
            raise ClusterError(
                f"no Ray cluster answers {where}: {str(error).splitlines()[0]}\n"
                "hint: `ray start --head` starts one; --address names another; `rayllm run` needs none."
            ) from None
    # Serve logs at INFO to the terminal of the connected process.
    logging.getLogger(serve.__name__).setLevel("WARNING")
    try:
        yield
    finally:
        if not was_connected:
            ray.shutdown()


def find(address: str) -> str:
    """Resolve a cluster's address for `ray.init`, check that it is reachable, and set up token authentication.

    Args:
        address: the cluster's address; `auto` is the one on this machine.

    Raises:
        OSError: it is not reachable, or `auto` finds none or several.
    """
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    resolved = _local_address() if address == "auto" else address
    _check_reachable(resolved)
    # Local clusters require the token in the home folder. Ray only sends it with `auto`, and waits for half a minute if
    # a named cluster refuses the connection.
    hide_token_notice()
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return resolved


def hide_token_notice() -> None:
    """Keep Ray from logging that clusters require a token: it is set up by itself."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    logging.getLogger(maybe_enable_token_auth_if_token_available.__module__).setLevel("ERROR")


def _local_address() -> str:
    """Address of the cluster in RAY_ADDRESS, else of the one on this machine.

    Raises:
        OSError: there is none, or more than one.
    """
    from ray._private.services import find_bootstrap_address, find_gcs_addresses

    if named := os.environ.get("RAY_ADDRESS"):
        return named
    # Ray's record of the last cluster outlives one that was killed, and Ray would retry it for minutes.
    recorded = find_bootstrap_address(None)
    running: list[str] = sorted(find_gcs_addresses())
    if recorded in running:
        return str(recorded)
    if not running:
        raise OSError("none runs here.")
    if len(running) > 1:
        raise OSError(f"several run here: {', '.join(running)}.")
    return running[0]


def _check_reachable(address: str) -> None:
    """Raise OSError if no process listens at an address; Ray itself would retry for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
