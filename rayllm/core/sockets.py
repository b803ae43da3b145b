"""The folder of Unix sockets by which processes of one user talk on a node."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rayllm.core.errors import ClusterError


def socket_folder() -> Path:
    """A folder that only this user can access. Its path is short: the kernel's limit for a socket is 107 bytes.

    Raises:
        ClusterError: its path is not a directory, or other users can access it.
    """
    folder = Path(tempfile.gettempdir()) / f"rayllm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(f"{folder} must be a directory that only this user can access; remove it.")
    return folder


def connect_or_start(path: Path, start: Callable[[Path], None]) -> socket.socket:
    """Connect to a server of this node at its Unix socket.

    If it does not run, `start` starts it at that path, and returns when it listens; others that connect wait meanwhile.

    Raises:
        OSError: the server cannot be reached.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError, ConnectionRefusedError):
                connection.connect(str(path))
                return connection
            path.unlink(missing_ok=True)
            start(path)
            connection.connect(str(path))
            return connection
    except BaseException:
        connection.close()
        raise
