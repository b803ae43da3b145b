"""Sets the environment variables that vLLM reads at import."""

import os
import sys
import sysconfig
from pathlib import Path

from rayllm.core.settings import settings
from rayllm.engine.process import parent_watch

# Variables with folders of compiled code: in the cache, which outlives a container where it is on a volume.
_COMPILED = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TILELANG_CACHE_DIR")


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
        for name in _COMPILED:
            os.environ.setdefault(name, str(settings().cache_path / name.partition("_")[0].lower()))
        _find_compilers()
    os.environ["VLLM_MAX_STOP_STRINGS"] = str(max_stop_strings() + extra_stop_strings)


def _find_compilers() -> None:
    """Let vLLM's kernels find ninja and CUDA's compiler where pip has installed them."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for compiler in Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin/nvcc"):
        os.environ.setdefault("CUDA_HOME", str(compiler.parents[1]))
        _find_libraries(compiler.parents[1] / "lib")


def _find_libraries(folder: Path) -> None:
    """Let linkers find CUDA's libraries and the driver's, which have a version in their names there."""
    named = settings().cache_path / "cuda"
    named.mkdir(parents=True, exist_ok=True)
    for library in folder.glob("lib*.so.*"):
        (named / f"{library.name.partition('.so')[0]}.so").write_text(f"INPUT({library})\n")
    (named / "libcuda.so").write_text("INPUT(-l:libcuda.so.1)\n")
    searched = [str(named), str(folder), os.environ.get("LD_LIBRARY_PATH"), os.environ.get("LIBRARY_PATH")]
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, searched))


def max_stop_strings() -> int:
    """The highest number of stop texts of a request."""
    return int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
