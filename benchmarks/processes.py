"""The processes of a running application, found by their titles."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def titled(title: str) -> list[psutil.Process]:
    """Processes whose title begins so, by process ID, of the Ray clusters in this process's temporary folder."""
    matches = []
    folder = os.path.join(os.path.realpath(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()), "ray", "session_")
    # Not by psutil, which takes several times as long: those who wait for a process ask all the time.
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        with suppress(OSError, psutil.NoSuchProcess):
            # That of a zombie is empty.
            if Path(f"/proc/{name}/cmdline").read_bytes().startswith(title.encode()):
                process = psutil.Process(int(name))
                if (_log(process) or "").startswith(folder):
                    matches.append(process)
    return matches


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
