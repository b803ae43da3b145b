"""Time that processes spend on a CPU or waiting for one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def busy_seconds(process_ids: Iterable[int]) -> float:
    """Seconds that the threads of the processes and of their current children have run so far, or waited for a CPU."""
    import psutil  # comes with vLLM

    total = 0.0
    for process_id in process_ids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process_id)
            for process in [parent, *parent.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system + _waited_seconds(process.pid)
    return total


def _waited_seconds(process_id: int) -> float:
    """Seconds that a process's current threads could have run, but no CPU was free; 0 if the kernel does not say."""
    nanoseconds = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process_id}/task"):
            # The numbers are time on a CPU, time waiting for one, and the number of turns. Threads end meanwhile.
            with suppress(OSError):
                schedstat = Path(f"/proc/{process_id}/task/{thread}/schedstat").read_text(encoding="ascii")
                nanoseconds += int(schedstat.split()[1])
    return nanoseconds / 1e9
