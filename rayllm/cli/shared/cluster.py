"""Connect to the Ray cluster that a command works on."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rayllm.core.errors import ClusterError


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster as `connect`, for the duration of the block, if this process has no connection."""
    import ray

    if ray.is_initialized():
        yield
        return
    # A cluster that ends with the block needs no dashboard.
    connect(address, **({} if address else {"include_dashboard": False}))
    try:
        yield
    finally:
        ray.shutdown()


def connect(address: str | None, verbose: bool = False, **options: Any) -> None:
    """Connect to a Ray cluster, or start a cluster. Raises ClusterError if there is none at the address.

    Args:
        address: the cluster's address; `auto` is the one on this machine, None starts one.
        verbose: whether to show what Ray and all processes write.
        options: of `ray.init`.
    """
    import ray
    from ray import serve

    from rayllm.cluster.ray_internals import hide_worker_count

    try:
        resolved = find(address) if address else "local"
        if not address:
            # At Ray's default of 15, any client on the same machine takes the CPU from replicas and engines.
            os.environ.setdefault("RAY_worker_niceness", "0")
        if not verbose:
            hide_token_notice()
            hide_worker_count()
            options |= {"log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address=resolved, namespace="serve", **options)
    except (OSError, ValueError, RuntimeError) as error:
        if address is None:
            raise
        where = "on this machine" if address == "auto" else f"at {address}"
        raise ClusterError(
            f"no Ray cluster answers {where}: {str(error).splitlines()[0]}\n"
            "hint: `ray start --head` starts one; --address names another; `rayllm run` needs none without it."
        ) from None
    if not verbose:
        # Serve logs at INFO to the terminal of the connected process.
        logging.getLogger(serve.__name__).setLevel("WARNING")


def find(address: str) -> str:
    """Resolve a cluster's address for `ray.init`, check that the cluster is reachable, and set up its token.

    Raises OSError if the cluster is not reachable, or `auto` finds none or several on this machine.
    """
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    resolved = _local_address() if address == "auto" else address
    host, colon, port = resolved.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        # Ray itself would retry for minutes.
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    # Local clusters require the token in the home folder. Ray only sends it with `auto`, and waits for half a minute if
    # a named cluster refuses the connection.
    hide_token_notice()
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return resolved


def hide_token_notice() -> None:
    """Keep Ray from logging that clusters require a token, which is set up automatically."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    logging.getLogger(maybe_enable_token_auth_if_token_available.__module__).setLevel("ERROR")


def _local_address() -> str:
    """Address of the cluster in RAY_ADDRESS, else of this machine's only cluster; else raises OSError."""
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
