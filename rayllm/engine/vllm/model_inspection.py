"""How vLLM finds out what a model can do, before its engine starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def inspected_in_process() -> Iterator[None]:
    """Have vLLM import a model's module in this process while the block runs, if the engine is on a CPU.

    vLLM imports it in a process of its own, because the import may initialize CUDA. That process first imports all of
    vLLM, for several seconds. The result is cached on disk, but not where each replica starts in a new container.
    """
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        yield
        return
    in_subprocess = registry._run_in_subprocess
    registry._run_in_subprocess = _call
    try:
        yield
    finally:
        registry._run_in_subprocess = in_subprocess


def _call(function: Callable[[], Any]) -> Any:
    return function()
