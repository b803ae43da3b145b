"""The GPUs of this machine, as NVIDIA's own tool tells them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from rayllm.sizing.gpus import GPUS, Gpu

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class LocalGpu:
    """One GPU: its maker's name, its memory in MiB, and the driver's version."""

    name: str
    memory_mib: int
    driver: str

    @property
    def kind(self) -> Gpu | None:
        """The GPU that RayLLM knows by that name; None where it knows none."""
        words = self.name.upper().replace("-", " ").split()
        alike = [gpu for gpu in GPUS if gpu.name.partition("-")[0] in words]
        return min(alike, key=lambda gpu: abs(gpu.memory_gib * 1024 - self.memory_mib), default=None)


def local_gpus() -> list[LocalGpu]:
    """The GPUs of this machine; empty where it has none, or no driver."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [LocalGpu(row[0], int(row[1]), row[2]) for row in rows if len(row) == 3 and row[1].isdigit()]
