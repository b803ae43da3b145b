"""List the GPUs of this machine with nvidia-smi."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from rayllm.sizing.gpus import GPUS, Gpu

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class LocalGpu:
    """A GPU: NVIDIA's name, memory in MiB, and the driver's version."""

    name: str
    memory_mib: int
    driver: str

    @property
    def kind(self) -> Gpu | None:
        """The GPU in RayLLM's table; None if it is unknown."""
        words = self.name.upper().replace("-", " ").split()
        candidates = [gpu for gpu in GPUS if gpu.name.partition("-")[0] in words]
        return min(candidates, key=lambda gpu: abs(gpu.memory_gib * 1024 - self.memory_mib), default=None)


def local_gpus() -> list[LocalGpu]:
    """The GPUs of this machine; empty without a GPU or driver."""
    try:
        result = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in result.stdout.splitlines()]
    return [LocalGpu(row[0], int(row[1]), row[2]) for row in rows if len(row) == 3 and row[1].isdigit()]
