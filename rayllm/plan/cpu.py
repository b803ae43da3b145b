"""The type that a CPU computes in, by its instructions."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Instructions that multiply bfloat16, as Linux names them: AVX-512 and AMX on x86, and Arm's.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# How transformers ends the names of architectures that generate text.
_GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_SHORT_NAMES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class Cpu:
    """A processor: its name and its instruction sets, as in Linux's /proc/cpuinfo."""

    name: str
    flags: frozenset[str]

    @property
    def bfloat16_flags(self) -> list[str]:
        """The instructions that multiply bfloat16. Without any, bfloat16 is converted to float32 and back."""
        return sorted(self.flags & _BFLOAT16_FLAGS)

    @property
    def dtype(self) -> str:
        """The data type in which this processor computes fastest, by vLLM's name.

        Never float16: most kernels of vLLM's CPU backend convert it to float32.
        """
        return "bfloat16" if self.bfloat16_flags else "float32"

    @property
    def reason(self) -> str:
        """Why this processor computes fastest in `dtype`."""
        if flags := self.bfloat16_flags:
            return f"the CPU multiplies bfloat16 ({', '.join(flags)})"
        return "the CPU has no instructions for bfloat16 (AVX512_BF16, AMX)"


def this_cpu() -> Cpu | None:
    """The processor of this machine; None where there is no /proc/cpuinfo."""
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    except OSError:
        return None


def memory_bytes() -> int:
    """The memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_cpuinfo(text: str) -> Cpu | None:
    """Parse the first processor of /proc/cpuinfo. None if it lists no instruction sets, as on s390x and POWER."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    # x86 calls them flags, Arm features.
    flags = fields.get("flags") or fields.get("Features")
    return Cpu(fields.get("model name", "CPU"), frozenset(flags.split())) if flags else None


def cpu_dtype(config: Mapping[str, Any], task: str | None, cpu: Cpu) -> str | None:
    """The default data type of a model on a CPU; None leaves the type to vLLM.

    Without a task in the model's file, the architecture in config.json tells the task.
    """
    text = config.get("text_config") or {}
    if config.get("quantization_config") or text.get("quantization_config"):
        # Kernels for quantized weights support only some types.
        return None
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if stored.removeprefix("torch.") == "float32" and not generates(config, task):
        # Small models, whose users compare the numbers of their answers.
        return "float32"
    return cpu.dtype


def slow_dtype(dtype: str, cpu: Cpu) -> bool:
    """Whether a CPU converts this data type before it computes, so that `cpu.dtype` is faster."""
    return _SHORT_NAMES.get(dtype, dtype) in {"bfloat16", "float16"} - {cpu.dtype}


def generates(config: Mapping[str, Any], task: str | None) -> bool:
    """Whether a model generates text, by its task or its architecture."""
    if task:
        return task == "generate"
    return any(str(name).endswith(_GENERATIVE) for name in config.get("architectures") or ())
