"""The device that the models under test run on, and how they are placed on it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any

from rayllm.cli.shared.machine import local_gpus
from rayllm.plan.cpu import this_cpu


@dataclass(frozen=True)
class Device:
    """A GPU, or this machine's CPU for a rehearsal.

    `accelerator` is its name in Ray, if Ray has one; `memory_bytes` is 0 for a CPU.
    """

    kind: str
    name: str
    accelerator: str | None = None
    driver: str = ""
    memory_bytes: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    def whole(self, **engine_kwargs: Any) -> dict[str, Any]:
        """A model's keys that give it the whole device."""
        if not self.is_gpu:
            return {"engine_kwargs": engine_kwargs}
        return {
            "accelerator_type": self.accelerator,
            "engine_kwargs": {"gpu_memory_utilization": 0.4, **engine_kwargs},
        }

    def share(self, part: float, **engine_kwargs: Any) -> dict[str, Any]:
        """A model's keys that give it a part of the device."""
        if not self.is_gpu:
            return {"engine_kwargs": engine_kwargs}
        return {
            "placement_group_config": {"bundle_per_worker": {"GPU": part}},
            "engine_kwargs": {"gpu_memory_utilization": 0.8 * part, **engine_kwargs},
        }

    def used_bytes(self) -> int:
        """Memory of the GPU that is in use, by all processes."""
        query = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        first = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        return int(first) * 2**20


def find_device(kind: str) -> Device | None:
    """The first GPU, or the CPU; None if there is no GPU."""
    if kind == "cpu":
        cpu = this_cpu()
        return Device("cpu", cpu.name if cpu else "a CPU")
    for gpu in local_gpus():
        # RayLLM's table has Ray's names, with the memory where there are several sizes.
        accelerator = gpu.kind.name.partition("-")[0] if gpu.kind else None
        return Device("cuda", gpu.name, accelerator, gpu.driver, gpu.memory_mib * 2**20)
    return None
