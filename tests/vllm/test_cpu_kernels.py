"""Triton's kernels in engines that are forked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def replaced_kernels() -> list[dict[str, Any]]:
    """The names of the kernels that are replaced, and by what, before and after vLLM does it."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import dispatcher

    found = []
    for _ in range(2):
        found.append({name: (str(kernel), str(by)) for name, (kernel, by) in dispatcher._registry.items()})
        current_platform.register_triton_kernel_overrides()
    return found


def test_they_are_replaced_once(run_forked: Callable[..., Any]) -> None:
    pytest.importorskip("vllm.triton_utils.dispatcher")
    from vllm.triton_utils import HAS_TRITON

    before, after = run_forked(replaced_kernels)
    assert bool(before) != HAS_TRITON
    assert before == after
