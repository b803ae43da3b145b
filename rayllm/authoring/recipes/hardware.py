"""The names of hardware in recipes: one kind, its generation and its brand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_GENERATIONS = {
    "turing": ("T4",),
    "volta": ("V100",),
    "ampere": ("A10G", "A100"),
    "ada": ("L4", "L40S"),
    "hopper": ("H100", "H200", "H20"),
    "blackwell": ("B200", "B300", "GB200", "GB300", "RTX-PRO-6000"),
}
_T = TypeVar("_T")

CPU = ("cpu",)
"""The keys of a CPU."""


def keys_of(accelerator: str | None) -> tuple[str, ...]:
    """The keys of an accelerator in a recipe, the most specific first.

    Args:
        accelerator: Ray's name, such as `H100` or `AMD-Instinct-MI300X-OAM`; None has no keys.
    """
    if accelerator is None:
        return ()
    if accelerator.startswith("AMD-Instinct-"):
        return accelerator.split("-")[2].lower(), "amd"
    name = "A100" if accelerator.startswith("A100") else accelerator
    generations = [generation for generation, names in _GENERATIONS.items() if name in names]
    if not generations:
        return (name.lower().replace("-", "_"),)
    return name.lower().replace("-", "_"), generations[0], "nvidia"


def first(values: Mapping[str, _T], keys: tuple[str, ...]) -> _T | None:
    """The value of the most specific key; None if there is none."""
    return next((values[key] for key in keys if key in values), None)
