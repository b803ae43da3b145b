"""Checkpoints that no engine would load: unknown architectures, and a config.json of other weights."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from packaging.version import Version

from rayllm.authoring.checkpoint import check_architecture, check_tensors
from rayllm.config.vllm_versions import installed_version, names_of
from rayllm.errors import ConfigError
from rayllm.sizing.known_models import known_config, known_models, outline_tensors
from rayllm.sources.safetensors import Tensor


def tensors(rows: int, columns: int, layers: int, prefix: str = "model.") -> dict[str, Tensor]:
    made = {f"{prefix}embed_tokens.weight": Tensor("BF16", (rows, columns))}
    return made | {f"{prefix}layers.{number}.norm.weight": Tensor("BF16", (columns,)) for number in range(layers)}


SHAPE = {"vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["LlamaForSequenceClassification"]},  # made of the one above
        {"architectures": ["Qwen3Model"]},
        {"architectures": ["HeronForCausalLM", "LlamaForCausalLM"]},
        {"architectures": ["CodeGenForCausalLM"]},  # only transformers has it
        {"architectures": ["HeronForCausalLM"], "auto_map": {"AutoModel": "heron.Heron"}},
        {"architectures": None},
        {},
    ],
)
def test_architectures_that_vllm_runs(config: dict[str, Any]) -> None:
    check_architecture(config)


def test_an_architecture_that_vllm_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as refused:
        check_architecture({"architectures": ["LlamaaForCausalLM"]})
    assert refused.value.message == (
        f"config.json: architectures: `LlamaaForCausalLM`: vLLM {installed_version()} does not have it; "
        "did you mean `LlamaForCausalLM`."
    )


def test_an_architecture_of_another_vllm_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.config.vllm_versions.installed_version", lambda: Version("0.26.0"))
    newer = set(names_of("0.32")["architectures"]) - set(names_of("0.26")["architectures"])
    name = next(name for name in sorted(newer) if not hasattr(transformers, name))
    with pytest.raises(ConfigError, match=r"needs vLLM 0\.\d+ or newer; 0\.26\.0 is installed"):
        check_architecture({"architectures": [name]})


@pytest.mark.parametrize("name", known_models())
def test_known_models_agree_with_their_tensors(name: str) -> None:
    config = known_config(name)
    assert config
    check_tensors(config, outline_tensors(config))


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (SHAPE, tensors(100, 8, 2)),
        (SHAPE, tensors(100, 8, 3)),  # with layers that predict further tokens
        ({"text_config": SHAPE, "hidden_size": 4}, tensors(100, 8, 2, "language_model.model.")),
        (SHAPE, tensors(100, 8, 2) | tensors(7, 3, 1, "vision_tower.")),
        (SHAPE | {"word_embed_proj_dim": 4}, tensors(100, 4, 2)),
        (SHAPE | {"is_encoder_decoder": True}, tensors(100, 8, 1, "model.decoder.")),
        (SHAPE, {"model.embed_tokens.weight": Tensor("U8", (50, 8))}),  # quantized
        ({"num_hidden_layers": "two"}, tensors(1, 1, 1)),
        ({}, {}),
    ],
)
def test_tensors_that_a_config_describes(config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    check_tensors(config, weights)


@pytest.mark.parametrize(
    ("config", "weights", "said"),
    [
        (SHAPE, tensors(99, 8, 2), "vocab_size is 100, but model.embed_tokens.weight has 99 rows: it is of another"),
        (SHAPE, tensors(100, 4, 2), "hidden_size is 8, but model.embed_tokens.weight has 4 columns"),
        (SHAPE, tensors(100, 8, 1), "num_hidden_layers is 2, but the weights have 1 layers"),
        ({"text_config": SHAPE}, tensors(100, 4, 2, "language_model.model."), "hidden_size is 8, but language_model."),
    ],
)
def test_a_config_of_other_weights_is_refused(config: dict[str, Any], weights: dict[str, Tensor], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_tensors(config, weights)
    assert refused.value.message.startswith("config.json: ")
    assert said in refused.value.message
