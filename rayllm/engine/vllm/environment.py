"""Sets the environment variables that vLLM reads at import."""

import os

from rayllm.engine.process import parent_watch


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
    os.environ["VLLM_MAX_STOP_STRINGS"] = str(max_stop_strings() + extra_stop_strings)


def max_stop_strings() -> int:
    """The highest number of stop texts of a request."""
    return int(os.environ.get("VLLM_MAX_STOP_STRINGS", "4"))
