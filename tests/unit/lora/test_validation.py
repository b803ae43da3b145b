"""Validation of adapters before an engine loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.lora import Adapter
from rayllm.lora.validation import validate_adapter
from tests.unit.lora.files import CONFIG, LAYER, SHAPES, adapter, safetensors, write

DEMO = Path(__file__).parents[3] / "models" / "rayllm-demo"
Q, A, B = f"{LAYER}.q_proj", "lora_A.weight", "lora_B.weight"


def check(folder: Path, files: dict[str, bytes], max_rank: int = 8) -> None:
    validate_adapter(Adapter("m", "x"), write(folder, files), max_rank)


def refusal(folder: Path, files: dict[str, bytes]) -> str:
    """The reason for which an adapter is refused."""
    with pytest.raises(RequestError) as caught:
        check(folder, files)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "model", "adapter_broken")
    assert str(folder) not in error.message
    before = "The adapter `m:x` cannot be used: "
    assert error.message.startswith(before)
    return error.message.removeprefix(before)


@pytest.mark.parametrize("name", ["pirate", "shout"])
def test_demo_adapters_are_valid(name: str) -> None:
    validate_adapter(Adapter("rayllm-demo", name), DEMO / "adapters" / name, 16)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": True}, "adapter_config.json: `r` is no rank"),
        ({"r": "8"}, "adapter_config.json: `r` is no rank"),
        ({"r": 0}, "adapter_config.json: `r` is no rank"),
        ({"r": None}, "adapter_config.json: `r` is no rank"),
        ({"r": 9}, "adapter_config.json has rank 9, and this model takes ranks up to 8"),
        ({"rank_pattern": {"q_proj": 9}}, "adapter_config.json has rank 9"),
        ({"peft_type": "IA3"}, "adapter_config.json: `peft_type` is IA3"),
        ({"use_dora": True}, "adapter_config.json: `use_dora` is set"),
        ({"bias": "all"}, "adapter_config.json: `bias` is all"),
        ({"modules_to_save": ["lm_head"]}, "adapter_config.json: `modules_to_save` holds whole layers"),
        ({"lora_bias": True}, "adapter_config.json: `lora_bias` is set, and vLLM does not support biases"),
        ({"alora_invocation_tokens": [1]}, "adapter_config.json: `alora_invocation_tokens` is set"),
        ({"layer_replication": [[0, 1]]}, "adapter_config.json: `layer_replication` is set"),
        ({"use_bdlora": {"nblocks": 2}}, "adapter_config.json: `use_bdlora` is set"),
        ({"use_qalora": True}, "adapter_config.json: `use_qalora` is set"),
        ({"init_lora_weights": "pissa"}, "adapter_config.json: `init_lora_weights` is pissa, which changes the base"),
        ({"init_lora_weights": "Corda"}, "adapter_config.json: `init_lora_weights` is Corda"),
        ({"lora_alpha": None}, "adapter_config.json: `lora_alpha` is no number"),
        ({"lora_alpha": True}, "adapter_config.json: `lora_alpha` is no number"),
        ({"lora_alpha": float("nan")}, "adapter_config.json: `lora_alpha` is no number"),
        ({"rank_pattern": [1]}, "adapter_config.json: `rank_pattern` is no mapping"),
        ({"alpha_pattern": {"(": 1}}, "adapter_config.json: `alpha_pattern` is no mapping of regular expressions"),
        ({"alpha_pattern": {"a{9999999999}": 1}}, "adapter_config.json: `alpha_pattern` is no mapping of regular"),
        ({"alpha_pattern": {"q_proj": "1"}}, "adapter_config.json: `alpha_pattern` is no mapping"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, "adapter_config.json: `alpha_pattern` is no mapping"),
    ],
)
def test_unsupported_config_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, adapter(**config)).startswith(message)


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+$",
        "(?:a|a)*",
        "(a|b){9}",
        "(a)?(a)?",
        "(?x: (a+) +)",
        "(a+)(?#x)+",
        "(?=a)b",
        ".*.*.*.*x",
        "[a]{1,9}[b]+c*d*",
        "(a|a)" * 20,
        "a?" * 21 + "a",
        "a" * 257,
    ],
)
def test_an_expression_that_could_take_long_is_refused(tmp_path: Path, key: str, expression: str) -> None:
    said = refusal(tmp_path, adapter(**{key: {"q_proj": 4, expression: 4}}))
    assert said.startswith(f"adapter_config.json: `{key}` holds `{expression[:80]}`, which can take too long to match")


@pytest.mark.parametrize(
    "expression",
    [
        "model.layers.0.self_attn.q_proj",
        r"^.*\.layers\.\d+\..*q_proj$",
        r"layers\.(?:[0-9]|1[0-9])\.(self_attn|mlp)\.(q_proj|k_proj|v_proj|o_proj)",
        r"layers\.(" + "|".join(map(str, range(48))) + r")\..*_proj",
        r"[(+*?{|)]\(\)\+\?",
    ],
)
def test_an_expression_that_people_write_is_taken(tmp_path: Path, expression: str) -> None:
    check(tmp_path, adapter(rank_pattern={expression: 4}))


@pytest.mark.parametrize(
    "config",
    [
        {"r": 8},
        {"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"^.*q_proj": 0.5}},
        {"rank_pattern": None, "alpha_pattern": None, "init_lora_weights": None},
        {"init_lora_weights": False},
        {"init_lora_weights": "EVA"},
        {"lora_alpha": 10**400},
        {"new": [1]},
    ],
)
def test_supported_config_is_accepted(tmp_path: Path, config: dict[str, Any]) -> None:
    check(tmp_path, adapter(**config))


@pytest.mark.parametrize("config", [b"{", b"", b"\xff", b"[" * 100_000, b"[]", b"7"], ids=lambda config: config[:3])
def test_invalid_config_is_refused(tmp_path: Path, config: bytes) -> None:
    assert refusal(tmp_path, adapter() | {"adapter_config.json": config}).startswith("adapter_config.json is no ")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    files = adapter()
    del files[name]
    assert refusal(tmp_path, files) == f"it has no {name}."


def test_truncated_file_is_named(tmp_path: Path) -> None:
    files = adapter()
    files["adapter_model.safetensors"] = files["adapter_model.safetensors"][:-1]
    assert refusal(tmp_path, files).startswith("adapter_model.safetensors: its size is not what its header says")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({f"{Q}.{A}": (9, 4), f"{Q}.{B}": (6, 9)}, f"adapter_model.safetensors: `{LAYER[17:]}.q_proj` has rank 9"),
        ({f"{Q}.{A}": (2, 4)}, "lacks lora_A or lora_B"),
        ({f"{Q}.{B}": (6, 2)}, "lacks lora_A or lora_B"),
        ({f"{Q}.{A}": (2, 4), f"{Q}.{B}": (6, 2, 1)}, "lacks lora_A or lora_B"),
        ({f"{Q}.{A}": (2, 4), f"{Q}.{B}": (6, 3)}, "differ in rank"),
        ({"embed_tokens.lora_embedding_A": (9, 4), "embed_tokens.lora_embedding_B": (4, 9)}, "has rank 9"),
        ({"embed_tokens.lora_embedding_A": (2, 4)}, "lacks lora_A or lora_B"),
        ({f"{Q}.lora_magnitude_vector": (6,)}, "holds no LoRA weights"),
        ({}, "holds no LoRA weights"),
        ({f"{'a.' * 130}{A}": (4, 6)}, "the name `a.a."),
    ],
)
def test_mismatched_weights_are_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    reason = refusal(tmp_path, adapter(shapes))
    assert reason.startswith("adapter_model.safetensors")
    assert message in reason


@pytest.mark.parametrize("dtype", ["I32", "BOOL", "F8_E8M0", "F33"])
def test_weights_that_are_no_floats_are_refused(tmp_path: Path, dtype: str) -> None:
    files = adapter() | {"adapter_model.safetensors": safetensors(SHAPES, dtype, bytes_each=4 if dtype == "I32" else 1)}
    assert f"`{Q}.{A}` is of type {dtype}, and weights of adapters are floats" in refusal(tmp_path, files)


@pytest.mark.parametrize(
    "shapes",
    [
        {f"model.layers.0.self_attn.q_proj.{A}": (2, 4), f"model.layers.0.self_attn.q_proj.{B}": (6, 2)},
        {"embed_tokens.lora_embedding_A": (2, 9), "embed_tokens.lora_embedding_B": (4, 2)},
        # The matrices of four experts, one below the other.
        {
            f"mlp.experts.base_layer.{A}": (8 * 4, 4),
            f"mlp.experts.base_layer.{B}": (6, 8 * 4),
            f"mlp.experts.{A}": (8 * 4, 3),
            f"mlp.experts.{B}": (4, 8 * 4),
        },
        # For the engine to say.
        SHAPES | {"base_model.model.lm_head.base_layer.weight": (9, 4)},
    ],
)
def test_all_kinds_of_names_are_accepted(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    check(tmp_path, adapter(shapes, r=8))


def test_config_of_these_tests_matches_peft() -> None:
    theirs = json.loads((DEMO / "adapters" / "pirate" / "adapter_config.json").read_text())
    assert CONFIG.keys() <= theirs.keys()
