"""Ports of servers in child processes."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.servers.process import HOST, reserved_port

# Source: linux/in.h; the first and the last port that a socket may be assigned.
_IP_LOCAL_PORT_RANGE = 51


@pytest.mark.parametrize("reuse", [0, 1])
def test_a_reserved_port_is_assigned_to_no_other_socket(reuse: int) -> None:
    with reserved_port() as port, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            other.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("=I", port | port << 16))
        except OSError:
            pytest.skip("needs Linux 6.3")
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, 0))


def test_a_server_can_bind_a_reserved_port() -> None:
    with reserved_port() as port, socket.create_server((HOST, port)) as server:
        socket.create_connection(server.getsockname()).close()
