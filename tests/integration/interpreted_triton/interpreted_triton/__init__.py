"""A backend of Triton for CPUs that compiles nothing: kernels run in Triton's interpreter (`TRITON_INTERPRET=1`).

vLLM's second model runner needs Triton, and vLLM uses Triton on CPUs only if there is a backend named `cpu`.
"""

from __future__ import annotations

from typing import Any


class Index(int):
    """An induction variable, which is a tensor where kernels are compiled."""

    def to(self, dtype: Any) -> Index:
        """Itself: Python's integers are of any width."""
        return self


def patch_interpreter() -> None:
    """Have the interpreter's loops count as those of compiled kernels do. vLLM calls this in each of its processes."""
    from triton.runtime import interpreter

    patch_lang_core = interpreter._patch_lang_core

    def patch(lang: Any, scope: Any) -> None:
        patch_lang_core(lang, scope)
        numbers = lang.range
        scope.set_attr(lang, "range", lambda *args, **options: map(Index, numbers(*args, **options)))

    interpreter._patch_lang_core = patch
