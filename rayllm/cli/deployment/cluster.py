"""The Ray cluster that a command works on."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from rayllm.errors import ClusterError


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to a Ray cluster in the body of the block.

    Args:
        address: of the cluster; `auto` is the one on this machine.

    Raises:
        ClusterError: none answers.
    """
    import ray
    from ray import serve

    was_connected = ray.is_initialized()
    if not was_connected:
        try:
            ray.init(address=find(address), namespace="serve", log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            where = "on this machine" if address == "auto" else f"at {address}"
            raise ClusterError(
                f"no Ray cluster answers {where}: {str(error).splitlines()[0]}\n"
                "hint: `ray start --head` starts one; --address names another; `rayllm run` needs none."
            ) from None
    # Serve's library tells of its own business, on the terminal of whoever is connected.
    logging.getLogger(serve.__name__).setLevel("WARNING")
    try:
        yield
    finally:
        if not was_connected:
            ray.shutdown()


def find(address: str) -> str:
    """The address of a cluster where somebody listens, for `ray.init`, which can then show the cluster's token.

    Args:
        address: of the cluster; `auto` is the one on this machine.

    Raises:
        OSError: nobody listens there, or `auto` finds none or several.
    """
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    found = _found() if address == "auto" else address
    _knock(found)
    # Clusters that Ray starts by itself ask for the token in the home folder. Ray itself shows it to `auto` alone, and
    # waits for half a minute where a named cluster refuses it. It need not say so.
    logging.getLogger(maybe_enable_token_auth_if_token_available.__module__).setLevel("ERROR")
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return found


def _found() -> str:
    """The address of the cluster that RAY_ADDRESS names, else of the one that runs here.

    Raises:
        OSError: there is none, or more than one.
    """
    from ray._private.services import find_bootstrap_address, find_gcs_addresses

    if named := os.environ.get("RAY_ADDRESS"):
        return named
    # Ray's note of the last cluster stays when that was killed, and Ray would try to reach it for minutes.
    noted = find_bootstrap_address(None)
    running: list[str] = sorted(find_gcs_addresses())
    if noted in running:
        return str(noted)
    if not running:
        raise OSError("none runs here.")
    if len(running) > 1:
        raise OSError(f"several run here: {', '.join(running)}.")
    return running[0]


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at an address; Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
