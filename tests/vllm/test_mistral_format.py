"""Mistral's own format, read as vLLM reads it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rayllm.plan.architecture import read_architecture
from rayllm.sources.mistral_format import as_config, usual_names
from tests.vllm.test_shipped_plans import CONFIGS, mistral_params
from tests.vllm.test_specs import is_locked

SMALL_4 = "mistralai--Mistral-Small-4-119B-2603"
MODELS = [stem for stem in CONFIGS if stem.startswith("mistralai") and "text_config" in CONFIGS[stem]]
# What both must agree on, as far as sizes depend on it.
KEYS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers"),
    *("head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings", "sliding_window", "layer_types"),
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "moe_intermediate_size", "n_routed_experts"),
    *("num_experts_per_tok", "n_shared_experts"),
)


def params_of(stem: str) -> dict[str, Any]:
    # vLLM requires it of models with shared experts.
    scaling = {"llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1}}
    return mistral_params(CONFIGS[stem]) | (scaling if "n_shared_experts" in CONFIGS[stem]["text_config"] else {})


def vllm_config(params: dict[str, Any]) -> Any:
    from vllm.transformers_utils.configs.mistral import adapt_config_dict

    return adapt_config_dict(copy.deepcopy(params), defaults={})


WINDOWS: list[dict[str, Any]] = [{}, {"sliding_window": [4096, None]}, {"sliding_window": 512}]


def takes(stem: str, change: dict[str, Any]) -> bool:
    """Whether a pattern of windows ends with the model's last layer."""
    pattern = change.get("sliding_window")
    return not isinstance(pattern, list) or CONFIGS[stem]["text_config"]["num_hidden_layers"] % len(pattern) == 0


@pytest.mark.parametrize(
    ("stem", "change"), [(stem, change) for stem in MODELS for change in WINDOWS if takes(stem, change)]
)
def test_params_are_converted_as_in_vllm(stem: str, change: dict[str, Any]) -> None:
    params = params_of(stem) | change
    ours, theirs = as_config(params, {}), vllm_config(params)
    assert ours["architectures"] == theirs.architectures
    assert ours["model_type"] == theirs.model_type
    for key in KEYS:
        default = None if key in ours["text_config"] else getattr(theirs.text_config, key, None)
        assert ours["text_config"].get(key, default) == getattr(theirs.text_config, key, None), key
    scaling, their_scaling = ours["text_config"]["rope_parameters"], theirs.text_config.rope_parameters
    for key in ("rope_type", "factor", "original_max_position_embeddings"):
        assert scaling[key] == their_scaling[key]


def test_names_are_mapped_as_in_vllm() -> None:
    from vllm.model_executor.models.mistral_large_3 import MistralLarge3ForCausalLM

    if not hasattr(MistralLarge3ForCausalLM, "hf_to_vllm_mapper"):
        pytest.skip("this vLLM maps names elsewhere")
    layer = ("attention_norm", "ffn_norm", "gate", "attention.wq_a", "attention.wkv_a_with_mqa", "attention.wkv_b")
    layer += ("attention.q_a_norm", "attention.kv_a_norm", "attention.wo", "feed_forward.w1", "experts.7.w2")
    names = [f"layers.3.{name}.weight" for name in (*layer, "shared_experts.w3")]
    names += ["layers.3.experts.7.w1.qscale_weight", "norm.weight", "tok_embeddings.weight", "output.weight"]
    mapped = MistralLarge3ForCausalLM.hf_to_vllm_mapper.apply_list(names)
    assert list(usual_names(dict.fromkeys(names))) == mapped


def test_mistral_small_4_has_latent_attention_in_its_own_format_only(tmp_path: Path) -> None:
    from vllm.transformers_utils.config import get_config
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    def layout(config: Any) -> tuple[bool, int, int]:
        found = ModelArchConfigConvertorBase(config, config.get_text_config())
        return found.is_deepseek_mla(), found.get_total_num_kv_heads(), found.get_head_size()

    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[SMALL_4]))
    try:
        usual = get_config(str(tmp_path), trust_remote_code=False)
    except ValueError as error:
        if is_locked():
            raise
        pytest.skip(f"these transformers do not have the model: {error}")
    [kept] = set(read_architecture(CONFIGS[SMALL_4]).caches)
    assert layout(usual) == (False, kept.heads, kept.key)

    params = params_of(SMALL_4)
    is_latent, _, size = layout(vllm_config(params))
    [latent] = set(read_architecture(as_config(params, {})).caches)
    assert (is_latent, size) == (True, latent.key + latent.value)
