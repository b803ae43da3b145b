"""Validates an adapter's files without its base model: a broken adapter fails only the requests for it.

The engine checks what the base model takes; see `rayllm.engine.vllm.adapters`.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from rayllm.core.errors import RequestError
from rayllm.lora.adapter import Adapter
from rayllm.sources.safetensors import Tensor, read_complete_file

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_LORA_WEIGHT = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?:embedding_)?(?P<side>[AB])(?:\.weight)?")
_FLOATS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
# PEFT's keys that change what an adapter computes, and what they stand for. Older vLLMs ignore most.
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "lora_bias": "biases",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "replicated layers",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}
# Initializations that leave the base's weights alone; for all others PEFT changes these weights on loading.
_PLAIN_INITS = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}
# Characters of a module's name, and of a regular expression for such names.
_MAX_NAME = 256
# Steps of matching a name of a hundred characters: some ten milliseconds, which stop the replica.
_MAX_STEPS = 10**6
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")


def validate_adapter(adapter: Adapter, folder: Path, max_rank: int) -> None:
    """Refuse an adapter that engines could not load, or would load otherwise than PEFT does.

    Raises:
        RequestError: a file is missing or broken, or asks for what is not supported; the message names the file.
    """
    try:
        _check_config(_read_config(folder / CONFIG), max_rank)
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"it has no {WEIGHTS}")
        try:
            tensors = read_complete_file(folder / WEIGHTS)
        except ValueError as error:
            raise ValueError(f"{WEIGHTS}: {error}") from None
        _check_tensors(tensors, max_rank)
    except ValueError as error:
        raise RequestError(f"The adapter `{adapter}` cannot be used: {error}.", "model", "adapter_broken") from None


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


def _check_config(config: dict[str, Any], max_rank: int) -> None:
    rank = config.get("r")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"{CONFIG}: `r` is no rank")
    if not _is_number(config.get("lora_alpha", rank)):
        raise ValueError(f"{CONFIG}: `lora_alpha` is no number")
    if str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise ValueError(f"{CONFIG}: `peft_type` is {config['peft_type']}, and only LORA is supported")
    for key, what in _UNSUPPORTED.items():
        if config.get(key):
            raise ValueError(f"{CONFIG}: `{key}` is set, and vLLM does not support {what}")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        raise ValueError(
            f"{CONFIG}: `init_lora_weights` is {init}, which changes the base model's weights; convert it with PEFT's "
            "path_initial_model_for_weight_conversion"
        )
    if config.get("bias", "none") != "none":
        raise ValueError(f"{CONFIG}: `bias` is {config['bias']}, and vLLM does not support adapters with biases")
    if config.get("modules_to_save"):
        raise ValueError(f"{CONFIG}: `modules_to_save` holds whole layers, which vLLM does not replace")
    _pattern(config, "alpha_pattern")
    ranks = [rank, *_pattern(config, "rank_pattern").values()]
    _check_rank(max(value for value in ranks if type(value) is int), CONFIG, max_rank)


def _pattern(config: dict[str, Any], key: str) -> dict[str, Any]:
    """A setting that differs between modules, by regular expressions for their names."""
    pattern = config.get(key) or {}
    names = pattern if isinstance(pattern, dict) else {}
    if costly := next((name for name in names if not _is_cheap(name)), None):
        raise ValueError(
            f"{CONFIG}: `{key}` holds `{costly[:80]}`, which can take too long to match; write at most {_MAX_NAME} "
            "characters, three of `*`, `+` and `{`, few of `|` and `?`, no `(?` but `(?:`, and no quantifier on a group"
        )
    if isinstance(pattern, dict) and all(_is_expression(name) and _is_number(pattern[name]) for name in pattern):
        return pattern
    raise ValueError(f"{CONFIG}: `{key}` is no mapping of regular expressions to numbers")


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_expression(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, OverflowError):
        return False
    return True


def _is_cheap(expression: str) -> bool:
    """Whether a regular expression is matched in few steps, whatever the name."""
    if len(expression) > _MAX_NAME:
        return False
    plain = _ESCAPE_OR_CLASS.sub("x", expression).replace("(?:", "(")
    if re.search(r"\(\?|\)[*+?{]", plain):
        return False
    ways = math.prod(part.count("|") + 1 for part in plain.split("("))
    return bool(ways * 2 ** plain.count("?") * 100 ** len(re.findall(r"[*+{]", plain)) <= _MAX_STEPS)


def _check_tensors(tensors: dict[str, Tensor], max_rank: int) -> None:
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _LORA_WEIGHT.fullmatch(name):
            if len(name) > _MAX_NAME:
                raise ValueError(f"{WEIGHTS}: the name `{name[:80]}…` is longer than {_MAX_NAME} characters")
            modules.setdefault(match["module"], {})[match["side"]] = tensor
            if tensor.dtype not in _FLOATS:
                raise ValueError(f"{WEIGHTS}: `{name}` is of type {tensor.dtype}, and weights of adapters are floats")
    if not modules:
        raise ValueError(f"{WEIGHTS} holds no LoRA weights")
    for module, sides in modules.items():
        if sides.keys() != {"A", "B"} or any(len(side.shape) != 2 for side in sides.values()):
            raise ValueError(f"{WEIGHTS}: `{module}` lacks lora_A or lora_B, or they are not matrices")
        rank = sides["A"].shape[0]
        if sides["B"].shape[1] != rank:
            raise ValueError(f"{WEIGHTS}: lora_A and lora_B of `{module}` differ in rank")
        if not holds_all_experts(module):
            _check_rank(rank, f"{WEIGHTS}: `{module}`", max_rank)


def holds_all_experts(module: str) -> bool:
    """Whether PEFT keeps the matrices of all experts of a layer under this name, one below the other."""
    return module.endswith((".experts", ".experts.base_layer"))


def _check_rank(rank: int, where: str, max_rank: int) -> None:
    if rank > max_rank:
        raise ValueError(
            f"{where} has rank {rank}, and this model takes ranks up to {max_rank} (engine_kwargs.max_lora_rank)"
        )
