"""Supported GPUs and the memory that CUDA reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rayllm.config.faults import did_you_mean
from rayllm.core.errors import ConfigError

GIB = 2**30


def in_gib(size: int) -> str:
    """A size in bytes, such as `1.5 GiB`."""
    return f"{size / GIB:.1f} GiB"


@dataclass(frozen=True)
class Gpu:
    """A model of GPU: Ray's accelerator type, and the capacity that CUDA reports, less than the marketed one."""

    name: str
    memory_gib: float

    @cached_property
    def memory(self) -> int:
        """Memory in bytes."""
        return int(self.memory_gib * GIB)

    @property
    def batched_tokens(self) -> int:
        """vLLM's default for `max_num_batched_tokens`. Source: vLLM 0.29, `EngineArgs.get_batch_defaults`."""
        if self.memory >= 160 * GIB:
            return 16384
        return 8192 if self.memory >= 70 * GIB and not self.name.startswith("A100") else 2048

    @property
    def sequences(self) -> int:
        """vLLM's default for `max_num_seqs`. Source: as for `batched_tokens`."""
        return 256 if self.batched_tokens == 2048 else 1024


# Capacities as in PyTorch's out-of-memory errors. To add a GPU, add a line; boards without ECC have a little more.
GPUS = (
    Gpu("T4", 14.56),
    Gpu("L4", 22.03),
    Gpu("A10", 22.06),
    Gpu("A10G", 22.06),
    Gpu("GeForce-RTX-4090", 23.52),
    Gpu("GeForce-RTX-5090", 31.36),
    Gpu("A100-40G", 39.38),
    Gpu("L40S", 44.32),
    Gpu("H100", 79.11),
    Gpu("A100-80G", 79.15),
    Gpu("RTX-PRO-6000", 94.97),
    Gpu("H200", 139.80),
    Gpu("B200", 178.35),
    Gpu("B300", 267.69),
)


def find_gpu(name: str, known: Sequence[Gpu] = GPUS) -> Gpu:
    """Find a GPU by name, in any spelling: `a100_80gb` is `A100-80G`. Raises ConfigError for the option `--gpu`."""
    by_name = {_normalize(gpu.name): gpu for gpu in known} | {
        _normalize(f"{gpu.name}B"): gpu for gpu in known if gpu.name[-1] == "G"
    }
    by_name["a100"] = by_name["a10040g"]
    if gpu := by_name.get(_normalize(name)):
        return gpu
    names = [gpu.name for gpu in known]
    hint = did_you_mean(name, names) or f"; known are {', '.join(names)}"
    raise ConfigError(f"--gpu: `{name}` is not known{hint}.")


def _normalize(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
