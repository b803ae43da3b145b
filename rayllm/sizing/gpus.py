"""The GPUs that are known, with the memory that CUDA gives to programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rayllm.config.faults import did_you_mean
from rayllm.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    `name` is Ray's accelerator type; `memory_gib` is the capacity that CUDA reports, which is less than the name says.
    """

    name: str
    memory_gib: float

    @cached_property
    def memory(self) -> int:
        """Memory in bytes."""
        return int(self.memory_gib * GIB)

    @property
    def batched_tokens(self) -> int:
        """Tokens that vLLM computes in one step, where nothing else is said.

        Source: vLLM 0.29, `EngineArgs.get_batch_defaults`.
        """
        if self.memory >= 160 * GIB:
            return 16384
        return 8192 if self.memory >= 70 * GIB and not self.name.startswith("A100") else 2048

    @property
    def sequences(self) -> int:
        """Sequences that vLLM works on at once, where nothing else is said. Source: as `batched_tokens`."""
        return 256 if self.batched_tokens == 2048 else 1024


# Capacities as PyTorch names them when memory runs out; boards with ECC switched off have a little more.
GPUS = (
    Gpu("T4", 14.56),
    Gpu("V100", 15.77),
    Gpu("L4", 22.03),
    Gpu("A10G", 22.06),
    Gpu("A100-40G", 39.38),
    Gpu("L40S", 44.32),
    Gpu("H100", 79.11),
    Gpu("A100-80G", 79.15),
    Gpu("H200", 139.80),
    Gpu("B200", 178.35),
)


def find_gpu(name: str, option: str = "--gpu") -> Gpu:
    """The GPU of that name, however it is spelt: `a100_80gb` is `A100-80G`.

    Args:
        name: of the GPU.
        option: who said it, for the error.

    Raises:
        ConfigError: none is known by it.
    """
    by_name = {_plain(gpu.name): gpu for gpu in GPUS} | {
        _plain(f"{gpu.name}B"): gpu for gpu in GPUS if gpu.name[-1] == "G"
    }
    by_name |= {"a10": by_name["a10g"], "a100": by_name["a10040g"]}
    if found := by_name.get(_plain(name)):
        return found
    names = [gpu.name for gpu in GPUS]
    hint = did_you_mean(name, names) or f"; known are {', '.join(names)}"
    raise ConfigError(f"{option}: `{name}` is not known{hint}.")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
