"""The shapes of the tensors in a checkpoint: by transformers, or by hand where it lacks the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayllm.plan.architecture import read_architecture
from rayllm.plan.state_space import StateCache

Shapes = dict[str, tuple[int, ...]]
# Families whose checkpoints have other names than transformers' modules. vLLM's configurations replace theirs.
_RENAMED = {"deepseek_v4": "DeepseekV4Config", "kimi_linear": "KimiLinearConfig"}


def checkpoint_tensors(folder: Path) -> Shapes:
    """The shapes of the tensors in a checkpoint of the model.

    Args:
        folder: has its config.json.
    """
    import torch
    import transformers

    values = json.loads((folder / "config.json").read_text())
    if values["model_type"] == "bailing_hybrid":
        return _of_ling(values)
    config = transformers.AutoConfig.from_pretrained(folder)
    if config.model_type in _RENAMED:
        config = getattr(transformers, _RENAMED[config.model_type]).from_pretrained(folder)
    kind = transformers.AutoModelForCausalLM
    if config.model_type in ("whisper", "qwen3_asr"):
        kind = transformers.AutoModelForSpeechSeq2Seq
    elif "vision_config" in values:
        kind = transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        model = kind.from_config(config)
    tensors = dict(model.named_parameters())
    if config.model_type in _RENAMED:
        # A layer's experts stay together: apart, Kimi K3's are hundreds of thousands.
        experts = {name: tensor for name, tensor in tensors.items() if ".experts." in name}
        others = {name: tensor for name, tensor in tensors.items() if name not in experts}
        tensors = experts | transformers.core_model_loading.revert_weight_conversion(model, others)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return _of_kimi_k3(shapes, values) if "routed_expert_hidden_size" in values else shapes


def _of_kimi_k3(shapes: Shapes, config: dict[str, Any]) -> Shapes:
    """The tensors of Kimi K3, which transformers lacks, from those of a Kimi Linear with the same layers."""
    hidden, latent = config["hidden_size"], config["routed_expert_hidden_size"]
    gate = config["num_attention_heads"] * config["v_head_dim"]
    more: dict[str, Shapes] = {
        "kv_b_proj.weight": {"g_proj.weight": (gate, hidden)},
        "gate.weight": {
            "routed_expert_down_proj.weight": (latent, hidden),
            "routed_expert_norm.weight": (latent,),
            "routed_expert_up_proj.weight": (hidden, latent),
        },
        "input_layernorm.weight": {
            **dict.fromkeys(("self_attention_res_norm.weight", "mlp_res_norm.weight"), (hidden,)),
            **dict.fromkeys(("self_attention_res_proj.weight", "mlp_res_proj.weight"), (1, hidden)),
        },
        "norm.weight": {"output_attn_res_norm.weight": (hidden,), "output_attn_res_proj.weight": (1, hidden)},
    }
    found: Shapes = {}
    for name, shape in shapes.items():
        for last, added in more.items():
            if name.endswith(f".{last}"):
                found |= {name.removesuffix(last) + each: size for each, size in added.items()}
        if name.endswith(".experts.gate_up_proj"):
            shape = (*shape[:-1], latent)
        elif name.endswith(".experts.down_proj"):
            shape = (shape[0], latent, shape[-1])
        elif ".g_b_proj." in name:
            name, shape = name.replace("g_b_proj", "g_proj"), (shape[0], hidden)
        if ".g_a_proj." not in name:
            found[name] = shape
    return found


def _of_ling(config: dict[str, Any]) -> Shapes:
    """The matrices of Ling 2.5 or 3, which transformers lacks. Layers with latent attention are the last."""
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    is_3, wide, rotated = "short_conv_kernel_size" in config, heads * config["head_dim"], config["qk_rope_head_dim"]
    inner, expert, count = config["intermediate_size"], config["moe_intermediate_size"], config["num_experts"]
    names = ["q_proj", "k_proj", "v_proj", "f_proj", "g_proj"] if is_3 else ["g_proj"]
    linear = {
        **{f"attention.{name}.weight": (wide, hidden) for name in names},
        "attention.dense.weight": (hidden, wide),
    }
    if is_3:
        linear |= {f"attention.{each}_conv1d.weight": (wide, 1, config["short_conv_kernel_size"]) for each in "qkv"}
        linear |= {"attention.b_proj.weight": (heads, hidden), "attention.A_log": (heads,)}
    else:
        linear |= {"attention.query_key_value.weight": (3 * wide, hidden)}
    latent = {
        "attention.q_a_proj.weight": (config["q_lora_rank"], hidden),
        "attention.kv_a_proj_with_mqa.weight": (rank + rotated, hidden),
        "attention.q_b_proj.weight": (heads * (config["qk_nope_head_dim"] + rotated), config["q_lora_rank"]),
        "attention.kv_b_proj.weight": (heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), rank),
        "attention.dense.weight": (hidden, heads * config["v_head_dim"]),
        **({"attention.g_proj.weight": (heads, hidden)} if is_3 else {}),
    }
    blocks = {"mlp": inner}, {f"mlp.experts.{each}": expert for each in range(count)} | {"mlp.shared_experts": expert}
    found = {
        "model.word_embeddings.weight": (config["vocab_size"], hidden),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    states = sum(isinstance(cache, StateCache) for cache in read_architecture(config).caches)
    for layer in range(config["num_hidden_layers"]):
        is_sparse = layer >= config["first_k_dense_replace"]
        own = dict(linear if layer < states else latent)
        for block, width in blocks[is_sparse].items():
            own |= {f"{block}.{name}.weight": (width, hidden) for name in ("gate_proj", "up_proj")}
            own |= {f"{block}.down_proj.weight": (hidden, width)}
        if is_sparse:
            own |= {"mlp.gate.weight": (count, hidden)}
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return found
