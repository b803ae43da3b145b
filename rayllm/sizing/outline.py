"""Well-known models in outline, for machines that cannot ask the hub.

`data/shapes.json` has of each model's config.json what its size follows from; the tensors are made up from that, and
add up to the published number of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_PREFIX = "model.layers"


def known_config(repo_id: str) -> Mapping[str, Any] | None:
    """What is known of a repository's config.json; None where that is nothing."""
    return _known().get(repo_id)


def known_models() -> list[str]:
    """The repositories of which something is known."""
    return list(_known())


@cache
def _known() -> dict[str, Mapping[str, Any]]:
    known: dict[str, Mapping[str, Any]] = json.loads(files("rayllm.sizing").joinpath("data/shapes.json").read_text())
    return known


def tensors(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The headers that such a model's weights have: `dtype` and `shape` of each tensor by its name."""
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
    return {name: {"dtype": dtype, "shape": list(shape)} for name, shape in shapes.items()}


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
    yield from _feed_forward(config)


def _feed_forward(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    if experts:
        yield "mlp.gate.weight", (experts, hidden)
    for place in [f"mlp.experts.{number}" for number in range(experts)] or ["mlp"]:
        yield f"{place}.gate_proj.weight", (inner, hidden)
        yield f"{place}.up_proj.weight", (inner, hidden)
        yield f"{place}.down_proj.weight", (hidden, inner)
