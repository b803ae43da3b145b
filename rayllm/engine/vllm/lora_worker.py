"""Checks in vLLM's workers which tensors of an adapter the model's modules would take.

vLLM silently loads an adapter whose names match no module, and copies a tensor that is too small into a corner of the
module. Only workers can check this: each has a part of the model, and the model renames the tensors of a file.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from vllm.lora.layers import (
    FusedMoE3DWithLoRA,
    FusedMoEWithLoRA,
    LogitsProcessorWithLoRA,
    VocabParallelEmbeddingWithLoRA,
)
from vllm.lora.lora_model import LoRAModel
from vllm.lora.utils import is_base_embedding_weights, parse_fine_tuned_lora_name

Sizes = tuple[int, int]
"""The numbers of input and output features of a module; 0 for an unknown number."""


class LoraWorker:
    """vLLM mixes this class into its workers, as `worker_extension_cls`."""

    def check_lora_tensors(self: Any, shapes: dict[str, list[int]]) -> dict[str, Any]:
        """Check an adapter's tensors, given by name and shape; see `check_tensors`."""
        return check_tensors(self.model_runner.lora_manager._adapter_manager, shapes)


def check_tensors(manager: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """What a worker, given its LoRAModelManager, would do with an adapter's tensors, given their shapes by name.

    Returns:
        applied: the tensors that the worker applies; for each the size that it should have, or 0 if it fits.
        skipped: the tensors that vLLM skips on purpose.
        missing: a module that vLLM needs beside others in the file; "" for none.
        examples: for each last part of a module's name, a module that takes adapters.
    """
    sizes = _module_sizes(manager)
    mapper = _rename_mapper(manager.model)
    prefixes = getattr(manager.model, "lora_skip_prefixes", None) or []
    applied: dict[str, int] = {}
    skipped = []
    taken = set()
    for name, shape in shapes.items():
        if is_base_embedding_weights(name) or LoRAModel._should_skip_module(name, prefixes):
            skipped.append(name)
        elif (side := _side(name, mapper)) and side not in taken and side[0] in sizes:
            taken.add(side)
            applied[name] = _wanted_size(*side, sizes[side[0]], shape)
    return {
        "applied": applied,
        "skipped": skipped,
        "missing": _missing(manager, {module for module, _ in taken}),
        "examples": {module.rpartition(".")[2]: module for module in reversed(sizes)},
    }


def _rename_mapper(model: Any) -> Any:
    """vLLM's mapper from the tensors of an adapter to the model's modules; None if the names are the same."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None:
        return None
    # vLLM 0.29 renamed this method.
    return (getattr(mapper, "get_rename_mapper", None) or mapper.get_unstacked_mapper)()


def _side(name: str, mapper: Any) -> tuple[str, bool] | None:
    try:
        return parse_fine_tuned_lora_name(name, mapper) if ".lora_" in name else None
    except ValueError:
        return None


def _wanted_size(module: str, is_a: bool, sizes: Sizes, shape: Sequence[int]) -> int:
    """The number of features that a tensor of the module should have; 0 if the tensor fits, or if unknown."""
    wanted, found = (sizes[0], shape[1]) if is_a else (sizes[1], shape[0])
    # Tokens that only pad the vocabulary need no row.
    fits = found == wanted or (not is_a and "lm_head" in module and found < wanted)
    return 0 if fits else wanted


def _module_sizes(manager: Any) -> dict[str, Sizes]:
    """The sizes of the modules that take adapters, by the renamed names of files, in the model's order."""
    sizes: dict[str, Sizes] = {}
    for name, layer in manager.modules.items():
        parts = _parts(manager, name, layer)
        sizes |= zip(parts, _layer_sizes(layer, len(parts)), strict=True)
    if manager.is_pooling_model:
        # vLLM finds these by either name.
        sizes |= {name.removeprefix("model."): value for name, value in sizes.items()}
    return sizes


def _parts(manager: Any, name: str, layer: Any) -> list[str]:
    if isinstance(layer, FusedMoE3DWithLoRA):
        # As PEFT calls them: gate and up, and down.
        return [f"{name}.base_layer", name]
    return manager.packed_modules.get(name) or [name]


def _layer_sizes(layer: Any, count: int) -> list[Sizes]:
    if isinstance(layer, FusedMoE3DWithLoRA):
        return [(0, 0)] * count
    if isinstance(layer, FusedMoEWithLoRA):
        return _expert_sizes(layer, count)
    if isinstance(layer, LogitsProcessorWithLoRA):
        return [(layer.hidden_size, layer.vocab_size)]
    base = layer.base_layer
    if isinstance(layer, VocabParallelEmbeddingWithLoRA):
        return [(base.org_vocab_size, base.embedding_dim)]
    came_in, came_out = getattr(base, "input_size", 0), _output_sizes(base)
    if count == 1:
        came_out = [sum(came_out)]
    # Some layers have more slices than parts.
    return [(came_in, size) for size in (came_out if len(came_out) == count else [0] * count)]


def _output_sizes(base: Any) -> list[int]:
    """The features that come out of a linear layer of all workers, by slice."""
    if hasattr(base, "total_num_kv_heads"):
        # The layer's own sizes count the heads that several workers have a copy of.
        heads = base.total_num_heads, base.total_num_kv_heads, base.total_num_kv_heads
        head_sizes = base.head_size, base.head_size, getattr(base, "v_head_size", base.head_size)
        return [number * size for number, size in zip(heads, head_sizes, strict=True)]
    return list(getattr(base, "output_sizes", None) or [getattr(base, "output_size", 0)])


def _expert_sizes(layer: Any, count: int) -> list[Sizes]:
    """The sizes of the experts' parts: for each expert gate, down and up, or up and down if it has no gate."""
    config = layer.moe_config
    hidden = config.hidden_dim_unpadded
    inner = config.intermediate_size_per_partition_unpadded * layer.tp_size
    kinds = 3 if config.is_act_and_mul else 2
    return [(inner, hidden) if number % kinds == 1 else (hidden, inner) for number in range(count)]


def _missing(manager: Any, modules: Set[str]) -> str:
    """A part of a layer's experts that `modules` lacks beside other parts; "" if no part or all parts are missing."""
    experts = ((name, layer) for name, layer in manager.modules.items() if isinstance(layer, FusedMoEWithLoRA))
    for parts in (_parts(manager, name, layer) for name, layer in experts):
        absent = [part for part in parts if part not in modules]
        if 0 < len(absent) < len(parts):
            return absent[0]
    return ""
