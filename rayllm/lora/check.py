"""Looking into an adapter before an engine does: what is wrong is told by its file, and disturbs nobody."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayllm.errors import RequestError
from rayllm.lora.base import BaseModules
from rayllm.lora.names import AdapterName
from rayllm.lora.safetensors import Tensor, read_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_LORA = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")


@dataclass(frozen=True)
class AdapterLimits:
    """What an engine takes: the largest rank, and the modules of its model."""

    max_rank: int
    base: BaseModules


def check_adapter(name: AdapterName, folder: Path, limits: AdapterLimits) -> None:
    """Refuse an adapter that the engine could not load.

    Raises:
        RequestError: a file is missing, broken or made for something else; the message names it.
    """
    try:
        _check_config(_read_config(folder / CONFIG), limits)
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"it has no {WEIGHTS}")
        try:
            tensors = read_header(folder / WEIGHTS)
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
        raise ValueError(f"{CONFIG} is no configuration of an adapter")
    return config


def _check_config(config: dict[str, Any], limits: AdapterLimits) -> None:
    rank = config.get("r")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"{CONFIG}: `r` is no rank")
    if str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise ValueError(f"{CONFIG}: `peft_type` is {config['peft_type']}, and only LORA can be served")
    if config.get("use_dora"):
        raise ValueError(f"{CONFIG}: `use_dora` is set, and vLLM serves no DoRA")
    if config.get("bias", "none") != "none":
        raise ValueError(f"{CONFIG}: `bias` is {config['bias']}, and vLLM serves no adapters with biases")
    if config.get("modules_to_save"):
        raise ValueError(f"{CONFIG}: `modules_to_save` holds whole layers, which vLLM does not exchange")
    patterns = config.get("rank_pattern") or {}
    ranks = [rank, *(value for value in (patterns.values() if isinstance(patterns, dict) else ()))]
    _check_rank(max(value for value in ranks if type(value) is int), CONFIG, limits)


def _check_tensors(tensors: dict[str, Tensor], limits: AdapterLimits) -> None:
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if found := _LORA.fullmatch(name):
            sides.setdefault(found["module"], {})[found["side"]] = tensor
    if not sides:
        raise ValueError(f"{WEIGHTS} holds no LoRA weights")
    for module, pair in sides.items():
        _check_module(module, pair, limits)
    if not any(limits.base.has(module) for module in sides):
        raise ValueError(f"{WEIGHTS} is for other layers than this model has, such as `{next(iter(sides))}`")


def _check_module(module: str, pair: dict[str, Tensor], limits: AdapterLimits) -> None:
    if pair.keys() != {"A", "B"} or any(len(side.shape) != 2 for side in pair.values()):
        raise ValueError(f"{WEIGHTS}: `{module}` has not both of lora_A and lora_B")
    rank, in_size = pair["A"].shape
    out_size = pair["B"].shape[0]
    _check_rank(rank, f"{WEIGHTS}: `{module}`", limits)
    if pair["B"].shape[1] != rank:
        raise ValueError(f"{WEIGHTS}: lora_A and lora_B of `{module}` differ in rank")
    own = limits.base.other_shape(module, (out_size, in_size))
    # Whoever adds tokens makes the first and the last layer larger.
    if own and module.rpartition(".")[2] not in ("lm_head", "embed_tokens"):
        raise ValueError(
            f"{WEIGHTS}: `{module}` goes from {in_size} to {out_size}, and this model's from {own[1]} to {own[0]}; "
            "it was made for another base model"
        )


def _check_rank(rank: int, where: str, limits: AdapterLimits) -> None:
    if rank > limits.max_rank:
        raise ValueError(
            f"{where} has rank {rank}, and this model takes ranks up to {limits.max_rank} (engine_kwargs.max_lora_rank)"
        )
