"""Shipped files of this year's models, planned as `rayllm plan` does, without the hub.

`shipped_configs.json` has the keys of each model's config.json that determine its size. The checkpoint's tensors are
those of transformers' modules, in the types that its quantization stores. Their file has a header and no content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rayllm.cli.commands.plan import command
from tests.vllm.checkpoint_tensors import checkpoint_tensors
from tests.vllm.test_specs import is_locked

ROOT = Path(__file__).parents[2]
CONFIGS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("shipped_configs.json").read_text())
BYTES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1, "I32": 4}
# What no checkpoint quantizes: vocabulary, routers, convolutions, and encoders with what connects them to the decoder.
NOT_QUANTIZED = re.compile(r"embed|lm_head|\.gate\.weight$|router|conv|visual|vision|projector|norm")
EXPERTS = re.compile(r"\.experts\.")
Tensors = Iterator[tuple[str, str, tuple[int, ...]]]


def stored(name: str, shape: tuple[int, ...], config: dict[str, Any]) -> Tensors:
    """How a checkpoint stores a tensor: names, types and shapes, scales included."""
    quantization = {**config, **config.get("text_config", {})}.get("quantization_config") or {}
    method = " ".join(str(quantization.get(key, "")) for key in ("quant_method", "quant_algo", "format"))
    is_linear = len(shape) > 1 and not NOT_QUANTIZED.search(name)
    if not quantization or not is_linear:
        yield name, "BF16", shape
        return
    is_expert = bool(EXPERTS.search(name))
    *outer, inputs = shape
    if "awq" in method:
        yield from stored_by_awq(name.removesuffix("weight"), shape, quantization["group_size"])
    elif "mxfp4-pack-quantized" in method and is_expert:
        yield f"{name}_packed", "U8", (*outer, inputs // 2)
        yield f"{name}_scale", "U8", (*outer, inputs // 32)
    elif "pack-quantized" in method and is_expert:
        yield f"{name}_packed", "I32", (*outer, inputs // 8)
        yield f"{name}_scale", "BF16", (*outer, inputs // 32)
    elif is_expert and ("fp4" in method.lower() or config.get("expert_dtype") == "fp4"):
        yield name, "I8", (*outer, inputs // 2)
        yield f"{name}_scale", "U8", (*outer, inputs // (16 if "NVFP4" in method else 32))
    elif "fp8" in method.lower() or "float-quantized" in method:
        yield name, "F8_E4M3", shape
        if "mxfp8" in method:
            yield f"{name}_scale_inv", "U8", (*outer, inputs // 32)
    else:
        yield name, "BF16", shape


def stored_by_awq(layer: str, shape: tuple[int, ...], group: int) -> Tensors:
    """How AWQ stores a layer's weights: transposed, in 4 bits, with a scale and a zero for each group of inputs."""
    outputs, inputs = shape
    yield f"{layer}qweight", "I32", (inputs, outputs // 8)
    yield f"{layer}qzeros", "I32", (inputs // group, outputs // 8)
    yield f"{layer}scales", "F16", (inputs // group, outputs)


def unquantized(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as transformers' modules take it, which would otherwise make modules of the quantization."""
    config = {**config, **config.get("thinker_config", {})}
    if config["model_type"] == "kimi_k3":
        # transformers lacks its encoder of images, less than a thousandth of it.
        config = config["text_config"]
    texts = {key: value for key, value in config.get("text_config", {}).items() if key != "quantization_config"}
    plain = {key: value for key, value in config.items() if key not in ("quantization_config", "thinker_config")}
    return plain | ({"text_config": texts} if texts else {})


def mistral_params(config: dict[str, Any]) -> dict[str, Any]:
    """The params.json that Mistral's own format has in place of config.json."""
    text = config["text_config"]
    keys = {"dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers"}
    keys |= {"n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads"}
    keys |= {"tied_embeddings": "tie_word_embeddings"}
    same = ("head_dim", "vocab_size", "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "v_head_dim")
    keys |= {key: key for key in (*same, "qk_nope_head_dim", "qk_rope_head_dim")}
    experts = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
    experts |= {"expert_hidden_dim": "moe_intermediate_size"}
    experts |= {key: key for key in ("num_experts_per_tok", "first_k_dense_replace")}
    moe = {key: text[usual] for key, usual in experts.items() if usual in text}
    positions = text["rope_parameters"]
    return {
        **{key: text[usual] for key, usual in keys.items() if usual in text},
        **({"moe": moe} if moe else {}),
        "yarn": {key: positions[key] for key in ("factor", "original_max_position_embeddings")},
        "vision_encoder": config["vision_config"],
        "quantization": {"qformat_weight": "fp8_e4m3"} if "quantization_config" in config else None,
    }


def write_checkpoint(folder: Path, config: dict[str, Any], task: str | None, is_mistral: bool) -> None:
    """Write a checkpoint as large as the real one, of which the disk stores the header."""
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(unquantized(config)))
    shapes = checkpoint_tensors(folder)
    path.write_text(json.dumps(config))
    if task == "embed":
        # Published without what continues a text.
        shapes.pop("lm_head.weight", None)
    header, end = {}, 0
    for name, shape in shapes.items():
        for stored_name, dtype, stored_shape in stored(name, shape, config):
            begin, end = end, end + prod(stored_shape) * BYTES[dtype]
            header[stored_name] = {"dtype": dtype, "shape": stored_shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    if is_mistral:
        path.unlink()
        (folder / "params.json").write_text(json.dumps(mistral_params(config)))
    with (folder / ("consolidated.safetensors" if is_mistral else "model.safetensors")).open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)


@pytest.mark.parametrize("stem", CONFIGS)
def test_a_shipped_file_fits_the_accelerators_that_it_names(stem: str, tmp_path: Path) -> None:
    model = yaml.safe_load((ROOT / "models" / f"{stem}.yaml").read_text())
    is_mistral = model["engine_kwargs"].get("load_format") == "mistral"
    try:
        write_checkpoint(tmp_path / "weights", CONFIGS[stem], model.get("task"), is_mistral)
    except (AttributeError, ImportError, ValueError) as error:
        if is_locked():
            raise
        pytest.skip(f"these transformers do not have the model: {error}")
    model["model_loading_config"]["model_source"] = str(tmp_path / "weights")
    if "chat_template" in model:
        model["chat_template"] = str(ROOT / "models" / model["chat_template"])
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(model))
    done = CliRunner().invoke(
        command, [str(tmp_path / "model.yaml"), "--gpu", model.get("accelerator_type", "A10G"), "--json"]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    plan = json.loads(done.stdout)
    [gpu] = plan["gpus"]
    assert gpu["fits"], gpu
    assert plan["tokens"] == model["max_request_context_length"] <= plan["context"]
    name = plan["model"].split("/")[1]
    if name in SIZES:
        assert plan["parameters"] / 1e9 == pytest.approx(SIZES[name], rel=0.02)
    else:
        size = re.search(r"-(\d+(?:\.\d+)?)b(?:-|$)", name.lower())
        assert size, f"add the size of {name} to SIZES"
        assert plan["parameters"] / 1e9 == pytest.approx(float(size[1]), rel=0.06)


# Billions of parameters that vLLM loads, according to the model cards and checkpoints, where the name counts others or
# none.
SIZES = {
    "DeepSeek-V3.2": 671,
    "DeepSeek-V4-Flash-0731": 284,
    "DeepSeek-V4-Pro-0813": 1600,
    "GLM-4.7-FP8": 355,
    "GLM-4.7-Flash": 29.9,
    "GLM-5-FP8": 744,
    "GLM-5.2-FP8": 743,
    "Kimi-K2.5": 1030,
    "Kimi-K2.6": 1030,
    "Kimi-K3": 2800,
    "Llama-3.2-1B-Instruct": 1.24,
    "Llama-3.2-3B-Instruct": 3.21,
    "Llama-4-Maverick-17B-128E-Instruct-FP8": 401,
    "Llama-4-Scout-17B-16E-Instruct": 108.6,
    "MiniMax-M2": 229,
    "MiniMax-M2.5": 229,
    "MiniMax-M2.7": 229,
    "MiniMax-M3-MXFP8": 427,
    "Ministral-3-3B-Instruct-2512": 3.85,
    "Ministral-3-8B-Instruct-2512": 8.92,
    "Ministral-3-8B-Reasoning-2512": 8.92,
    "Phi-4-mini-instruct": 3.84,
    "Phi-4-reasoning": 14.7,
    "Qwen3-ASR-1.7B": 2.03,
    "Qwen3-Embedding-8B": 7.57,
    # Without its part for images.
    "Qwen3.5-0.8B": 0.752,
    "Qwen3.5-2B": 1.88,
    "Qwen3.5-4B": 4.21,
    "gemma-3-4b-it": 4.3,
    # Without its parts for images and speech.
    "gemma-4-E2B-it": 4.65,
    "gemma-4-E4B-it": 8.0,
    "phi-4": 14.7,
    "whisper-large-v3": 1.54,
    "whisper-large-v3-turbo": 0.81,
}
