"""The worker of a fake GPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from fake_gpu_memory import CONTEXT, FakeSleep, GpuMemory
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.utils.mem_utils import MemorySnapshot
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.utils import request_memory

import rayllm.engine.vllm.cpu_lora_patches  # noqa: F401  (kernels of vLLM's CPU backend)

# Workers on CPUs would exchange tensors through shared memory, although they may be on several machines.
CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False


class FakeGpuWorker(CPUWorker):
    """Computes on a CPU, and has a GPU's memory, which vLLM's worker for GPUs measures, requests and lets sleep.

    It fails as a GPU may: an adapter `unlucky` finds no memory on the second GPU, and the next step takes as many
    seconds as the file `step` in the folder FAKE_GPU_FAULTS says.
    """

    def init_device(self) -> None:
        """Find the GPU and request its memory."""
        # Workers that Ray has started see all GPUs of their node.
        gpus = self.parallel_config.assigned_physical_gpu_ids or os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        self._memory = GpuMemory(str(gpus[self.local_rank]))
        self._memory.attach()
        # What VLLM_CPU_KVCACHE_SPACE says is for CPUs.
        self.cache_config.kv_cache_memory_bytes = None
        self._memory.take("context", CONTEXT)
        self.init_snapshot = MemorySnapshot(device="cpu")
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        super().init_device()
        # The second model runner's module replaces some of these functions.
        self._memory.attach()

    def load_model(self, **options: Any) -> None:
        """Load the weights."""
        super().load_model(**options)
        model = self.model_runner.get_model()
        size = sum(parameter.nbytes for parameter in model.parameters())
        self._memory.take("weights", size)
        self.model_runner.model_memory_usage = size
        self._sleep_mode_backend = FakeSleep(self._memory, model)

    def determine_available_memory(self) -> int:
        """Measure a run of the largest batch."""
        return int(Worker.determine_available_memory(self))

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the KV cache."""
        self._memory.take("kv_cache", sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors))
        super().initialize_from_config(kv_cache_config)

    def sleep(self, level: int = 1) -> None:
        """Give the memory back."""
        Worker.sleep(self, level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Take the memory again."""
        Worker.wake_up(self, tags)

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
