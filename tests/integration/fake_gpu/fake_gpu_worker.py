"""The worker of a fake GPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

import rayllm.engine.vllm.cpu_lora_patches  # noqa: F401  (kernels of vLLM's CPU backend)


class FakeGpuWorker(CPUWorker):
    """Computes on a CPU, and fails as a GPU may: an adapter `unlucky` finds no memory on the second GPU.

    The next step takes as many seconds as the file `step` in the folder FAKE_GPU_FAULTS says.
    """

    def determine_available_memory(self) -> int:
        """Make a run of the largest batch, as workers on GPUs do: pipeline stages allocate there what they receive."""
        self.model_runner.profile_run()
        return int(super().determine_available_memory())

    def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter."""
        if self.rank == 1 and ":unlucky@" in lora_request.lora_name:
            raise MemoryError("no memory on the second GPU")
        return bool(super().add_lora(lora_request))

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step."""
        fault = Path(os.environ.get("FAKE_GPU_FAULTS", ""), "step")
        if self.rank == 0 and fault.is_file():
            seconds = float(fault.read_text())
            fault.unlink()
            time.sleep(seconds)
        return super().execute_model(*args, **kwargs)
