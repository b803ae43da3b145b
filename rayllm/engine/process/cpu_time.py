"""CPU time of processes."""

from __future__ import annotations

from collections.abc import Iterable


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """CPU seconds used so far by the processes and their current children."""
    import psutil  # comes with vLLM

    total = 0.0
    for process_id in process_ids:
        try:
            parent = psutil.Process(process_id)
            processes = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for process in processes:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
    return total
