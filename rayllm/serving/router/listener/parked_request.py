"""Requests that wait for a replica, parked with the manager of the listening sockets in case their router dies."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

from rayllm.serving.router.listener.socket_manager import PARKED, TAKEN

# Larger requests would take as much memory again.
MOST_BYTES = 1024 * 1024


class ParkedRequest:
    """A request of which the manager has a copy, until this router takes it back.

    Args:
        request: what has been read of it from the client's connection.
        taken: called when it is taken back.

    Raises:
        OSError: there are no descriptors or no memory for it.
    """

    def __init__(self, request: bytes, taken: Callable[[], None]) -> None:
        self._taken = taken
        self.file = os.memfd_create("rayllm-request")
        try:
            os.writev(self.file, [PARKED, request])
            # A write to memory cannot fail; one to the file could, such as by a limit on the sizes of files.
            self._state = mmap.mmap(self.file, len(PARKED))
        except OSError:
            os.close(self.file)
            raise

    def take_back(self) -> None:
        """Have this router answer it alone. From now on the request is lost if the router dies, and never answered
        twice.
        """
        if self.file < 0:
            return
        # The manager may learn of it after this router's death, and looks here first.
        self._state[:] = TAKEN
        self._state.close()
        os.close(self.file)
        self.file = -1
        self._taken()


def read_parked(file: int) -> bytes:
    """The request in a memfd, which is closed."""
    with os.fdopen(file, "rb") as content:
        content.seek(len(PARKED))
        return content.read()
