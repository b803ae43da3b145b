"""Quantized weights: those that vLLM quantizes when it loads them, and the parameters that packed tensors hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.sources.safetensors import Tensor

# Bytes per parameter, scales included, by vLLM's name. Blocks of fp8 are 128 × 128 with a scale of 32 bits, those of
# mxfp8 have 32 elements with a scale of 8 bits, and those of nvfp4 have 16.
_ONLINE = {
    "fp8": 1.0,
    "fp8_per_tensor": 1.0,
    "fp8_per_channel": 1.0,
    "fp8_per_block": 1 + 4 / 128**2,
    "int8_per_channel_weight_only": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4_per_token": 0.5 + 1 / 16,
}
# What is never quantized: vocabulary, norms, and the routers of experts.
_LINEAR = re.compile(r"\.(?:layers|h|blocks)\.\d+\..*(?:proj\w*|fc\d?|w[123]|c_attn|query_key_value)(?:\.weight)?$")
_ROUTER = re.compile(r"\.(?:gate|router)\.")
_SCALES = re.compile(r"(?:scales?|scale_inv|scale_2|zeros|zero_point|g_idx|weight_shape)$")
_PACKED_BITS = {"U8": 8, "I8": 8, "I32": 32}


def online_bytes(arguments: Mapping[str, Any], is_quantized: bool) -> float | None:
    """Bytes per parameter of linear layers that vLLM quantizes when it loads them; None if it does not.

    In a checkpoint that is quantized already, the method names its format.

    Raises:
        ConfigError: the method in `engine_kwargs` is not supported here.
    """
    method = arguments.get("quantization")
    if method is None or is_quantized:
        return None
    if method not in _ONLINE:
        raise ConfigError(
            f"engine_kwargs.quantization: `{method}` is not supported here for weights that are not quantized; "
            f"use {', '.join(_ONLINE)}."
        )
    return _ONLINE[method]


def is_converted(name: str) -> bool:
    """Whether vLLM quantizes a tensor when it loads it: only the linear layers of the decoder."""
    return bool(_LINEAR.search(name)) and not _ROUTER.search(name)


def parameters_of(name: str, tensor: Tensor, bits: int) -> int:
    """Parameters in a tensor of a quantized checkpoint, packed in `bits` each; 0 for scales and the like."""
    if _SCALES.search(name):
        return 0
    return tensor.count * max(1, _PACKED_BITS.get(tensor.dtype, bits) // bits)


def packed_bits(config: Mapping[str, Any]) -> int:
    """Bits per parameter of packed tensors, from a checkpoint's `quantization_config`; 8 if it packs none."""
    quantization = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not isinstance(quantization, Mapping):
        return 8
    # DeepSeek V4: only the experts' tensors are packed.
    if config.get("expert_dtype") == "fp4":
        return 4
    method = str(quantization.get("quant_method", ""))
    if "fp4" in f"{method} {quantization.get('quant_algo', '')} {quantization.get('format', '')}".lower():
        return 4
    for group in (quantization.get("config_groups") or {}).values():
        if bits := (group.get("weights") or {}).get("num_bits"):
            return int(bits)
    bits = quantization.get("bits") or quantization.get("w_bit")
    return ceil(int(bits)) if bits else 8
