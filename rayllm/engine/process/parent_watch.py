"""Ends an engine process when its parent process has died.

vLLM's engine would keep running, and keep its GPU, if the parent was killed by the OOM killer or `kill -9`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess as ParentProcess

# Set only by RayLLM, so that other users of vLLM in the same environment are unaffected.
PARENT = "_RAYLLM_ENGINE_PARENT"


def mark_as_parent() -> None:
    """Have the engines that this process starts end with this process."""
    os.environ[PARENT] = str(os.getpid())


def follow_parent() -> None:
    """End this process as soon as its marked parent has died."""
    parent = multiprocessing.parent_process()
    if parent is None or os.environ.get(PARENT) != str(parent.pid):
        return
    threading.Thread(target=_watch, args=(parent,), name="follow-parent", daemon=True).start()


def _watch(parent: ParentProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
