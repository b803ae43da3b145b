"""The folder of Unix sockets by which processes of one user talk on a node."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from rayllm.errors import ClusterError


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
