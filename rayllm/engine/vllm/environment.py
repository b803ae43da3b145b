"""Environment variables that vLLM reads at import."""

from __future__ import annotations

import os

from rayllm.engine.process import parent_watch


def prepare_environment(extra_stop_strings: int, gpu_share: float = 0) -> None:
    """Set what vLLM reads from the environment at import. Call before anything here imports it.

    Args:
        extra_stop_strings: stops that the configuration adds to each request; vLLM counts them against its limit
            on the client's.
        gpu_share: the part of a GPU that each worker's bundle holds, as Ray is to be asked for it.
    """
    parent_watch.mark()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A host that may be asked for media could send vLLM on to one that may not.
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    # vLLM's own limits are far above what a shared service can give to one request.
    os.environ.setdefault("VLLM_MAX_N_SEQUENCES", "128")
    if gpu_share:
        os.environ.setdefault("VLLM_RAY_PER_WORKER_GPUS", str(gpu_share))
    limit = int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
    os.environ["VLLM_MAX_STOP_STRINGS"] = str(limit + extra_stop_strings)
