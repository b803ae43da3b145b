"""The memory of a fake GPU: a ledger that all processes of the GPU debit, and vLLM's own calls that read it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

TOTAL = 512 * 2**20
# What the driver takes for a process.
CONTEXT = 16 * 2**20


class GpuMemory:
    """The memory of one GPU, as this process sees it.

    Args:
        gpu: the GPU's number. The ledger is a file in the folder FAKE_GPU_MEMORY.
    """

    def __init__(self, gpu: str) -> None:
        self._file = Path(os.environ["FAKE_GPU_MEMORY"], gpu)
        process = psutil.Process()
        self._own = f"{process.pid} {process.create_time()}"
        self._peak = 0

    @contextmanager
    def _ledger(self) -> Iterator[dict[str, dict[str, int]]]:
        """The bytes of each living process by what they are for."""
        self._file.parent.mkdir(exist_ok=True)
        with self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            entries = json.loads(file.read() or "{}")
            living = {owner: sizes for owner, sizes in entries.items() if _lives(owner)}
            yield living
            file.truncate(0)
            file.write(json.dumps(living))
            file.flush()

    def take(self, use: str, size: int) -> None:
        """Allocate.

        Raises:
            torch.OutOfMemoryError: the GPU has less.
        """
        with self._ledger() as entries:
            free = TOTAL - _used(entries)
            if size > free:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes; {free} are free.")
            own = entries.setdefault(self._own, {})
            own[use] = own.get(use, 0) + size
            self._peak = max(self._peak, sum(own.values()))

    def give_back(self, use: str) -> int:
        """Free what was taken for a use; returns the bytes."""
        with self._ledger() as entries:
            return entries.get(self._own, {}).pop(use, 0)

    def attach(self) -> None:
        """Have the functions of PyTorch that vLLM calls read the ledger."""
        accelerator = torch.accelerator
        accelerator.get_memory_info = lambda device=None: self._info()
        accelerator.memory_reserved = accelerator.memory_allocated = lambda device=None: self._allocated()
        accelerator.memory_stats = lambda device=None: {
            "allocated_bytes.all.current": self._allocated(),
            "allocated_bytes.all.peak": self._peak,
        }
        accelerator.reset_peak_memory_stats = lambda device=None: setattr(self, "_peak", self._allocated())
        accelerator.synchronize = lambda device=None: None
        accelerator.empty_cache = lambda: None

    def _info(self) -> tuple[int, int]:
        with self._ledger() as entries:
            return TOTAL - _used(entries), TOTAL

    def _allocated(self) -> int:
        """What PyTorch would hold: all but the context."""
        with self._ledger() as entries:
            return sum(size for use, size in entries.get(self._own, {}).items() if use != "context")


class FakeSleep(SleepModeBackend):
    """Gives the memory of a sleeping engine back, and takes it again when the engine wakes."""

    def __init__(self, memory: GpuMemory, model: torch.nn.Module) -> None:
        super().__init__()
        self._memory = memory
        self._model = model
        self._given_back: dict[str, int] = {}

    def suspend(self, level: int = 1) -> None:
        """Give weights and KV cache back; level 2 forgets the weights."""
        for use in ("weights", "kv_cache"):
            self._given_back[use] = self._memory.give_back(use)
        if level == 2:
            for parameter in self._model.parameters():
                parameter.data.zero_()
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Take the memory again, of these uses or of all."""
        for use in [use for use in self._given_back if tags is None or use in tags]:
            self._memory.take(use, self._given_back[use])
            del self._given_back[use]
        if not self._given_back:
            self._state = "RUNNING"


def _lives(owner: str) -> bool:
    pid, created = owner.split()
    try:
        process = psutil.Process(int(pid))
        return process.create_time() == float(created) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _used(entries: dict[str, dict[str, int]]) -> int:
    return sum(sum(sizes.values()) for sizes in entries.values())
