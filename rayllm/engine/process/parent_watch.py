"""An engine's process ends with the one that started it.

vLLM's engine goes on where its parent is killed without a word, by the kernel for want of memory or by `kill -9`, and
keeps its GPU from the one that takes its place. vLLM calls `follow_parent` in each of its processes, by the entry point
`vllm.general_plugins`.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# Set for the children of processes of ours alone: other users of vLLM in the same environment are left as they are.
PARENT = "_RAYLLM_ENGINE_PARENT"
_PERIOD_S = 1.0


def mark() -> None:
    """Have the engine that this process starts follow it."""
    os.environ[PARENT] = str(os.getpid())


def follow_parent() -> None:
    """End this process soon after the one that marked itself as its parent is gone."""
    parent = os.environ.get(PARENT)
    if parent is None or parent != str(os.getppid()):
        return
    threading.Thread(target=_watch, args=(int(parent),), name="follow-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PERIOD_S)
    os.kill(os.getpid(), signal.SIGKILL)
