"""The folder of Unix sockets by which processes of one user talk on a node."""

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rayllm.core.errors import ClusterError

# The kernel's limit for a socket is 107 bytes, and names of sockets have up to 40.
_LONGEST_FOLDER = 66


def socket_folder() -> Path:
    """A folder that only this user can access, by default in the folder for temporary files.

    If another user has its name there, the folder is in XDG_RUNTIME_DIR, which ends with the user's login. Raises
    ClusterError if neither works.
    """
    parents = [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()]
    folders = [Path(parent, f"rayllm-{os.getuid()}") for parent in parents]
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        if _is_private(folder) and len(os.fsencode(folder)) <= _LONGEST_FOLDER:
            return folder
    raise ClusterError(
        f"{folders[0]} must be a directory that only this user can access, with a path of at most {_LONGEST_FOLDER} "
        "bytes; remove it, or set TMPDIR to another folder."
    )


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def connect_or_start(path: Path, start: Callable[[Path], None]) -> socket.socket:
    """Connect to a server of this node at its Unix socket; raises OSError if the server cannot be reached.

    If the server does not run, `start` starts it at that path, and returns when it listens; other callers wait.
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
