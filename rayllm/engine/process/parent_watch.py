"""Ends an engine process when its parent process has died.

If its parent is killed, by the OOM killer or `kill -9`, vLLM's engine keeps running and keeps its GPU. vLLM calls
`follow_parent` in each of its processes, through the entry point `vllm.general_plugins`.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# Set only by RayLLM, so that other users of vLLM in the same environment are unaffected.
PARENT = "_RAYLLM_ENGINE_PARENT"
_PERIOD_S = 1.0


def mark_as_parent() -> None:
    """Make engines that this process starts follow it."""
    os.environ[PARENT] = str(os.getpid())


def follow_parent() -> None:
    """End this process soon after its marked parent has died."""
    parent = os.environ.get(PARENT)
    if parent is None or parent != str(os.getppid()):
        return
    threading.Thread(target=_watch, args=(int(parent),), name="follow-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PERIOD_S)
    os.kill(os.getpid(), signal.SIGKILL)
