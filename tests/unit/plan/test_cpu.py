from __future__ import annotations

from typing import Any

import pytest

from rayllm.plan.cpu import Cpu, cpu_dtype, parse_cpuinfo, slow_dtype

AVX2 = Cpu("old", frozenset({"avx", "avx2", "fma"}))
AVX512 = Cpu("newer", frozenset({"avx2", "avx512f", "avx512_vnni"}))
ZEN = Cpu("AMD EPYC", frozenset({"avx2", "avx512f", "avx512_bf16"}))
SAPPHIRE = Cpu("Xeon", frozenset({"avx512f", "avx512_bf16", "amx_bf16", "amx_tile"}))
GRAVITON2 = Cpu("CPU", frozenset({"asimd", "fphp", "asimdhp"}))
GRAVITON3 = Cpu("CPU", frozenset({"asimd", "bf16", "i8mm"}))
LLAMA = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("cpu", "dtype"),
    [
        (AVX2, "float32"),
        (AVX512, "float32"),
        (ZEN, "bfloat16"),
        (SAPPHIRE, "bfloat16"),
        (GRAVITON2, "float32"),
        (GRAVITON3, "bfloat16"),
    ],
)
@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
def test_a_cpu_computes_in_bfloat16_if_it_has_instructions_for_it(cpu: Cpu, dtype: str, stored: str) -> None:
    assert cpu_dtype({**LLAMA, "dtype": stored}, None, cpu) == dtype
    assert cpu_dtype({**LLAMA, "dtype": stored}, "generate", cpu) == dtype


@pytest.mark.parametrize(
    ("config", "task", "dtype"),
    [
        ({"architectures": ["BertModel"], "torch_dtype": "float32"}, None, "float32"),
        ({"architectures": ["BertModel"]}, None, "float32"),
        ({"architectures": ["BertModel"], "torch_dtype": "float16"}, None, "bfloat16"),
        ({**LLAMA, "dtype": "float32"}, "embed", "float32"),
        ({**LLAMA, "dtype": "torch.float32"}, "classify", "float32"),
        ({**LLAMA, "dtype": "bfloat16"}, "embed", "bfloat16"),
        ({"architectures": ["WhisperForConditionalGeneration"], "dtype": "float32"}, None, "bfloat16"),
    ],
)
def test_models_of_numbers_keep_float32(config: dict[str, Any], task: str | None, dtype: str) -> None:
    assert cpu_dtype(config, task, ZEN) == dtype
    assert cpu_dtype(config, task, AVX2) == "float32"


def test_quantized_weights_are_left_to_vllm() -> None:
    assert cpu_dtype({**LLAMA, "quantization_config": {"quant_method": "awq"}}, None, ZEN) is None
    assert cpu_dtype({"text_config": {"quantization_config": {}, "dtype": "x"}}, None, AVX2) == "float32"
    assert cpu_dtype({"text_config": {"quantization_config": {"bits": 4}}}, None, AVX2) is None


@pytest.mark.parametrize(
    ("dtype", "on_avx2", "on_zen"),
    [
        ("bfloat16", True, False),
        ("float16", True, True),
        ("half", True, True),
        ("float32", False, False),
        ("float", False, False),
    ],
)
def test_types_that_are_converted_are_slow(dtype: str, on_avx2: bool, on_zen: bool) -> None:
    assert (slow_dtype(dtype, AVX2), slow_dtype(dtype, ZEN)) == (on_avx2, on_zen)


X86 = """processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu avx2 avx512_bf16

processor\t: 1
model name\t: AMD EPYC
flags\t\t: fpu
"""


def test_cpuinfo_of_x86_and_arm() -> None:
    assert parse_cpuinfo(X86) == Cpu("AMD EPYC", frozenset({"fpu", "avx2", "avx512_bf16"}))
    assert parse_cpuinfo("processor\t: 0\nFeatures\t: asimd bf16\n") == Cpu("CPU", frozenset({"asimd", "bf16"}))
    assert parse_cpuinfo("processor\t: 0\ncpu\t\t: POWER10\n") is None
    assert parse_cpuinfo("") is None
