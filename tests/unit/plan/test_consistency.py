"""A config.json that describes the tensors beside it, or those of another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import read_architecture
from rayllm.plan.consistency import check_tensors, find_contradiction
from rayllm.plan.known_models import known_config, known_models, outline_tensors
from rayllm.sources.safetensors import Tensor
from tests.unit.plan.test_architecture import LLAMA
from tests.unit.plan.test_fit import tensors as tensors_of


def tensors(rows: int, columns: int, layers: int, prefix: str = "model.") -> dict[str, Tensor]:
    made = {f"{prefix}embed_tokens.weight": Tensor("BF16", (rows, columns))}
    return made | {f"{prefix}layers.{number}.norm.weight": Tensor("BF16", (columns,)) for number in range(layers)}


DEMO = Path(__file__).parents[3] / "models" / "rayllm-demo" / "weights"
SHAPE = {"vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2}


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
        (
            SHAPE,
            tensors(99, 8, 2),
            "vocab_size is 100, but the tensor `model.embed_tokens.weight` has the shape [99, 8]",
        ),
        (
            SHAPE,
            tensors(100, 4, 2),
            "hidden_size is 8, but the tensor `model.embed_tokens.weight` has the shape [100, 4]",
        ),
        (SHAPE, tensors(100, 8, 1), "num_hidden_layers is 2, but the weights have 1 layers"),
        (
            {"text_config": SHAPE},
            tensors(100, 4, 2, "language_model.model."),
            "hidden_size is 8, but the tensor `language_model.",
        ),
    ],
)
def test_a_config_of_other_weights_is_refused(config: dict[str, Any], weights: dict[str, Tensor], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_tensors(config, weights)
    assert refused.value.message.startswith("config.json: ")
    assert said in refused.value.message


def test_keys_of_another_width_are_refused() -> None:
    check_tensors(LLAMA, tensors_of(LLAMA), read_architecture(LLAMA))
    other = LLAMA | {"num_key_value_heads": 4}
    with pytest.raises(ConfigError, match=r"num_key_value_heads × head_dim is 512, but the tensor `model\.layers\.0\."):
        check_tensors(other, tensors_of(LLAMA), read_architecture(other))


def test_a_folder_whose_files_contradict_each_other(tmp_path: Path) -> None:
    assert find_contradiction(str(DEMO)) is None
    folder = shutil.copytree(DEMO, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "unknown", "vocab_size": 7}))
    found = find_contradiction(str(folder))
    assert found is not None
    assert found.message.startswith("config.json: vocab_size is 7, but the tensor `model.embed_tokens.weight`")


def test_what_cannot_be_read_contradicts_nothing(tmp_path: Path) -> None:
    assert find_contradiction(str(tmp_path)) is None
    assert find_contradiction("s3://bucket/model") is None
