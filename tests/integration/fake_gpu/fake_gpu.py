"""A platform for vLLM that computes on CPUs and is a GPU to Ray, so that engines take the path of GPUs.

vLLM finds the platform by the entry point in `fake_gpu-1.0.dist-info` where this folder is in `PYTHONPATH`. Placement,
device ids, Ray's workers, their queues and vLLM's accounts of the memory are as on GPUs; kernels and NCCL are not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def platform() -> str:
    """The class path of the platform, which vLLM prefers to its own."""
    return f"{__name__}.FakeGpuPlatform"


class FakeGpuPlatform(CpuPlatform):
    """A CPU that Ray counts and places as GPUs."""

    ray_device_key = "GPU"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"
    ray_noset_device_env_vars = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)

    def is_sleep_mode_available(self) -> bool:
        """Whether engines can sleep."""
        return True

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Complete the configuration as on a CPU, with the worker of this module."""
        # Threads of a worker are bound to no core: all workers share the few of this machine.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        config = vllm_config.parallel_config
        if config.worker_cls == "auto":
            config.worker_cls = "fake_gpu_worker.FakeGpuWorker"
        executor = config.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        # On a CPU, vLLM gives a single worker a process of its own.
        config.distributed_executor_backend = executor
