"""Validates adapters before an engine loads them, so that a broken one fails its own requests only."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayllm.errors import RequestError
from rayllm.lora.base_modules import BaseModules
from rayllm.lora.names import AdapterName
from rayllm.sources.safetensors import Tensor, read_complete_file

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_LORA_WEIGHT = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class AdapterLimits:
    """What an engine accepts: the largest rank, and the modules of its model."""

    max_rank: int
    base: BaseModules


def validate_adapter(name: AdapterName, folder: Path, limits: AdapterLimits) -> None:
    """Refuse an adapter that the engine could not load.

    Raises:
        RequestError: a file is missing, broken or made for another base model; the message names it.
    """
    try:
        _check_config(_read_config(folder / CONFIG), limits)
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"it has no {WEIGHTS}")
        try:
            tensors = read_complete_file(folder / WEIGHTS)
        except ValueError as error:
            raise ValueError(f"{WEIGHTS}: {error}") from None
        _check_tensors(tensors, limits)
    except ValueError as error:
        raise RequestError(f"The adapter `{name}` cannot be used: {error}.", "model", "adapter_broken") from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"it has no {CONFIG}") from None
    except (ValueError, OSError, RecursionError):
        raise ValueError(f"{CONFIG} is no JSON") from None
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG} is no JSON object")
    return config


def _check_config(config: dict[str, Any], limits: AdapterLimits) -> None:
    rank = config.get("r")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"{CONFIG}: `r` is no rank")
    if str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise ValueError(f"{CONFIG}: `peft_type` is {config['peft_type']}, and only LORA is supported")
    if config.get("use_dora"):
        raise ValueError(f"{CONFIG}: `use_dora` is set, and vLLM does not support DoRA")
    if config.get("bias", "none") != "none":
        raise ValueError(f"{CONFIG}: `bias` is {config['bias']}, and vLLM does not support adapters with biases")
    if config.get("modules_to_save"):
        raise ValueError(f"{CONFIG}: `modules_to_save` holds whole layers, which vLLM does not replace")
    patterns = config.get("rank_pattern") or {}
    ranks = [rank, *(patterns.values() if isinstance(patterns, dict) else ())]
    _check_rank(max(value for value in ranks if type(value) is int), CONFIG, limits)


def _check_tensors(tensors: dict[str, Tensor], limits: AdapterLimits) -> None:
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _LORA_WEIGHT.fullmatch(name):
            modules.setdefault(match["module"], {})[match["side"]] = tensor
    if not modules:
        raise ValueError(f"{WEIGHTS} holds no LoRA weights")
    for module, sides in modules.items():
        _check_module(module, sides, limits)
    if not any(limits.base.has_block(module) for module in modules):
        raise ValueError(f"{WEIGHTS} is for other layers than this model has, such as `{next(iter(modules))}`")


def _check_module(module: str, sides: dict[str, Tensor], limits: AdapterLimits) -> None:
    if sides.keys() != {"A", "B"} or any(len(side.shape) != 2 for side in sides.values()):
        raise ValueError(f"{WEIGHTS}: `{module}` lacks lora_A or lora_B, or they are not matrices")
    rank, in_size = sides["A"].shape
    out_size = sides["B"].shape[0]
    _check_rank(rank, f"{WEIGHTS}: `{module}`", limits)
    if sides["B"].shape[1] != rank:
        raise ValueError(f"{WEIGHTS}: lora_A and lora_B of `{module}` differ in rank")
    base_shape = limits.base.conflicting_shape(module, (out_size, in_size))
    # Adding tokens to the vocabulary enlarges the first and the last layer.
    if base_shape and module.rpartition(".")[2] not in ("lm_head", "embed_tokens"):
        raise ValueError(
            f"{WEIGHTS}: `{module}` maps {in_size} to {out_size} features, and this model's {base_shape[1]} to "
            f"{base_shape[0]}; it was made for another base model"
        )


def _check_rank(rank: int, where: str, limits: AdapterLimits) -> None:
    if rank > limits.max_rank:
        raise ValueError(
            f"{where} has rank {rank}, and this model takes ranks up to {limits.max_rank} (engine_kwargs.max_lora_rank)"
        )
