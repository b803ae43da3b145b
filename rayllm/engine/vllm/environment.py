"""Sets the environment variables that vLLM reads at import."""

import os
import sys
import sysconfig
from pathlib import Path

from rayllm.core.settings import settings
from rayllm.engine.process import parent_watch

# Folders of compiled code: in the cache, which outlives a container where it is on a volume.
_COMPILED = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer"}


def prepare_environment(extra_stop_strings: int, gpu_share: float = 0) -> None:
    """Set the environment variables that vLLM reads. Call before vLLM is imported.

    Args:
        extra_stop_strings: stop texts that the configuration adds to the client's.
        gpu_share: share of a GPU in each worker's bundle.
    """
    parent_watch.mark_as_parent()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # An allowed media host could redirect to one that is not allowed.
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    # vLLM's default is far above what a shared service can give to one request.
    os.environ.setdefault("VLLM_MAX_N_SEQUENCES", "128")
    if gpu_share:
        os.environ.setdefault("VLLM_RAY_PER_WORKER_GPUS", str(gpu_share))
        for name, folder in _COMPILED.items():
            os.environ.setdefault(name, str(settings().cache_path / folder))
        _find_compilers()
    os.environ["VLLM_MAX_STOP_STRINGS"] = str(max_stop_strings() + extra_stop_strings)


def _find_compilers() -> None:
    """Let vLLM's kernels find ninja and CUDA's compiler where pip has installed them."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for compiler in Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin/nvcc"):
        os.environ.setdefault("CUDA_HOME", str(compiler.parents[1]))


def max_stop_strings() -> int:
    """The highest number of stop texts of a request."""
    return int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
