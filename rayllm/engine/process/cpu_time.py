"""What processes use of this machine."""

from __future__ import annotations

from collections.abc import Iterable


def processor_seconds(process_ids: Iterable[int]) -> float:
    """Seconds of processor time that the processes and all their children have used so far."""
    import psutil  # comes with vLLM

    used = 0.0
    for process_id in process_ids:
        try:
            parent = psutil.Process(process_id)
            found = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for process in found:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used += times.user + times.system
    return used
