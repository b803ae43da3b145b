"""Replaces Triton's kernels with CPU versions. The fork server imports this module before it forks engines.

vLLM itself would search all imported modules for references to the kernels in each engine.
"""

from vllm.platforms import current_platform


def _is_done() -> None:
    """Take the place of vLLM's method in the engines."""


# Older versions of vLLM have no such method.
if hasattr(current_platform, "register_triton_kernel_overrides"):
    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = staticmethod(_is_done)
