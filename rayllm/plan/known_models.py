"""Outlines of well-known models, for machines that cannot reach the hub.

`data/shapes.json` holds the values of each model's config.json that determine its size. The tensors are derived from
them, and add up to the published number of parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rayllm.core.data_files import read_data
from rayllm.sources.safetensors import Tensor

_PREFIX = "model.layers"


def known_config(repo_id: str) -> Mapping[str, Any] | None:
    """The sizes in a repository's config.json; None if the model is not in the table."""
    return _configs().get(repo_id)


def known_models() -> list[str]:
    """The repositories in the table."""
    return list(_configs())


def _configs() -> dict[str, Mapping[str, Any]]:
    configs: dict[str, Mapping[str, Any]] = read_data("rayllm.plan", "shapes.json")
    return configs


def outline_tensors(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a model with such a config.json, by name."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"{_PREFIX}.{layer}.{name}": shape for name, shape in _layer(config)}
    dtype = {"bfloat16": "BF16", "float16": "F16"}[config["dtype"]]
    return {name: Tensor(dtype, shape) for name, shape in shapes.items()}


def _layer(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    family, hidden = config["model_type"], config["hidden_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    for name, outputs in (("q", queries), ("k", keys), ("v", keys)):
        yield f"self_attn.{name}_proj.weight", (outputs, hidden)
        if family == "qwen2":
            yield f"self_attn.{name}_proj.bias", (outputs,)
        if family.startswith("qwen3") and name != "v":
            yield f"self_attn.{name}_norm.weight", (width,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    for number in range(4 if family == "gemma2" else 2):
        yield f"norm_{number}.weight", (hidden,)
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    if experts:
        yield "mlp.gate.weight", (experts, hidden)
    for prefix in [f"mlp.experts.{number}" for number in range(experts)] or ["mlp"]:
        yield f"{prefix}.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.up_proj.weight", (inner, hidden)
        yield f"{prefix}.down_proj.weight", (hidden, inner)
