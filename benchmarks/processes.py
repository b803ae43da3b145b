"""The processes of a running application, found by their titles."""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil


def titled(title: str) -> list[psutil.Process]:
    """Processes whose title begins so, by process ID."""
    matches = []
    for process in psutil.process_iter():
        try:
            if " ".join(process.cmdline()).startswith(title) and process.status() != psutil.STATUS_ZOMBIE:
                matches.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(matches, key=lambda process: process.pid)


def of_same_clusters(members: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes of the Ray clusters of these, found by the folder of their logs: forked workers are no descendants."""
    folders = {os.path.dirname(log) for member in members if (log := _log(member)) and "/session_" in log}
    return [each for each in psutil.process_iter() if (log := _log(each)) and os.path.dirname(log) in folders]


def engines_of(replicas: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The engines of these replicas. They may be children of the fork server, but write to their replica's log."""
    logs = {_log(replica) for replica in replicas} - {None}
    return [engine for engine in titled("VLLM::EngineCore") if _log(engine) in logs]


def _log(process: psutil.Process) -> str | None:
    try:
        return os.readlink(f"/proc/{process.pid}/fd/1")
    except OSError:
        return None
