"""Prepares each process of an engine: vLLM calls `prepare_process` through the entry point `vllm.general_plugins`.

If the environment variable `VLLM_PLUGINS` is set, it must list `rayllm`.
"""

import logging
import os
import sys
from typing import Any

from rayllm.engine.process.parent_watch import PARENT, follow_parent
from rayllm.engine.vllm.grammar_backend import join_backends
from rayllm.engine.vllm.resumed_grammars import resume_grammars

logger = logging.getLogger(__name__)


def prepare_process() -> None:
    """Follow the parent process, and adapt the network interface, grammars, AMX and compilation.

    Does nothing for other users of vLLM.
    """
    if PARENT not in os.environ:
        return
    follow_parent()
    use_cluster_interface()
    join_backends()
    resume_grammars()
    allow_amx()
    compile_at_start()


def use_cluster_interface() -> None:
    """Have Gloo and NCCL of a worker that Ray has started use the network interface of the node's address in Ray.

    Gloo would take what the host's name resolves to, which on Debian is a loopback address. Names that the environment
    gives stay.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not ray.get_runtime_context().get_assigned_resources().get("GPU"):
        return
    import psutil  # comes with vLLM

    address = ray.util.get_node_ip_address()
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, interface)


def allow_amx() -> None:
    """Ask the kernel to allow AMX, on a CPU with AMX.

    vLLM's attention uses AMX on every such CPU, but a process that has not asked gets SIGILL. oneDNN asks when it
    multiplies its first large matrices, which the smallest models never do.
    """
    import torch
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        logger.warning(
            "The kernel does not allow AMX. If the engine dies of SIGILL, set `engine_kwargs.dtype: float32`."
        )


def compile_at_start() -> None:
    """Have a CPU's worker compile nothing once it has started, so that no request waits for a compiler.

    What vLLM would compile later, as parts of sampling when a request first needs them, runs uncompiled.
    """
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.config import CompilationMode
    from vllm.v1.worker.cpu_worker import CPUWorker

    warm_up = CPUWorker.compile_or_warm_up_model

    def warm_up_once(self: CPUWorker) -> Any:
        times = warm_up(self)
        if self.compilation_config.mode == CompilationMode.DYNAMO_TRACE_ONCE:
            torch.compiler.set_stance("eager_on_recompile")
        return times

    CPUWorker.compile_or_warm_up_model = warm_up_once
