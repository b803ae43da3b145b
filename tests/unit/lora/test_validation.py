"""Validation of adapters before an engine loads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayllm.errors import RequestError
from rayllm.lora import AdapterLimits, AdapterName, BaseModules
from rayllm.lora.validation import validate_adapter
from tests.unit.lora.files import CONFIG, LAYER, adapter, safetensors, write

DEMO = Path(__file__).parents[3] / "models" / "rayllm-demo"
Q, A, B = f"{LAYER}.q_proj", "lora_A.weight", "lora_B.weight"
BASE = {"model.layers.0.self_attn.q_proj": (6, 4), "model.embed_tokens": (9, 4), "lm_head": (9, 4)}


def check(
    folder: Path, files: dict[str, bytes], base: Mapping[str, tuple[int, int] | None] = BASE, max_rank: int = 8
) -> None:
    limits = AdapterLimits(max_rank, BaseModules(base))
    validate_adapter(AdapterName("m", "x"), write(folder, files), limits)


def refusal(folder: Path, *args: Any, **kwargs: Any) -> str:
    """The reason for which an adapter is refused."""
    with pytest.raises(RequestError) as caught:
        check(folder, *args, **kwargs)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "model", "adapter_broken")
    assert str(folder) not in error.message
    before = "The adapter `m:x` cannot be used: "
    assert error.message.startswith(before)
    return error.message.removeprefix(before)


@pytest.mark.parametrize("name", ["pirate", "shout"])
def test_demo_adapters_are_valid(name: str) -> None:
    base = BaseModules.of((DEMO / "weights").glob("*.safetensors"))
    assert base.conflicting_shape("model.layers.0.mlp.down_proj", (1, 1))
    validate_adapter(AdapterName("rayllm-demo", name), DEMO / "adapters" / name, AdapterLimits(16, base))


def test_a_base_in_mistral_s_own_format(tmp_path: Path) -> None:
    path = tmp_path / "consolidated.safetensors"
    path.write_bytes(safetensors({"layers.0.attention.wq.weight": (6, 4)}, "F8_E4M3"))
    base = BaseModules.of([path])
    assert base.has_block(Q)
    assert base.conflicting_shape(Q, (1, 1)) == (6, 4)


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
    ],
)
def test_unsupported_config_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, adapter(**config)).startswith(message)


@pytest.mark.parametrize("config", [{"r": 8}, {"rank_pattern": {"q_proj": 8}}, {"rank_pattern": None}, {"new": [1]}])
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
        ({f"{Q}.{A}": (2, 5), f"{Q}.{B}": (6, 2)}, "maps 5 to 6 features, and this model's 4 to 6"),
        ({f"{Q}.{A}": (2, 4), f"{Q}.{B}": (7, 2)}, "made for another base model"),
        ({f"{Q}.lora_magnitude_vector": (6,)}, "holds no LoRA weights"),
        ({}, "holds no LoRA weights"),
        (
            {f"base_model.model.h.0.attn.c_attn.{A}": (2, 4), f"base_model.model.h.0.attn.c_attn.{B}": (6, 2)},
            "is for other layers than this model has, such as `h.0.attn.c_attn`",
        ),
        (
            {f"model.layers.7.self_attn.q_proj.{A}": (2, 4), f"model.layers.7.self_attn.q_proj.{B}": (6, 2)},
            "is for other layers than this model has",
        ),
    ],
)
def test_mismatched_weights_are_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    reason = refusal(tmp_path, adapter(shapes))
    assert reason.startswith("adapter_model.safetensors")
    assert message in reason


def pair(module: str, in_size: int = 4, out_size: int = 6) -> dict[str, tuple[int, ...]]:
    return {f"{module}.{A}": (2, in_size), f"{module}.{B}": (out_size, 2)}


@pytest.mark.parametrize(
    "shapes",
    [
        pair("model.layers.0.self_attn.q_proj"),
        pair("base_model.model.language_model.model.layers.0.self_attn.q_proj"),
        {name.replace(".weight", ".default.weight"): shape for name, shape in pair(Q).items()},
        # Added tokens, or a padded vocabulary.
        pair("base_model.model.lm_head", 4, 12),
        pair("base_model.model.model.embed_tokens", 12, 4),
        # Fused in the checkpoint.
        pair(f"{LAYER}.qkv_proj", 5, 5),
        pair(Q) | pair("base_model.model.model.layers.0.new.x", 5, 5),
    ],
)
def test_module_name_variants_and_unknown_shapes_are_accepted(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]]
) -> None:
    check(tmp_path, adapter(shapes))


def test_unknown_base_accepts_any_adapter(tmp_path: Path) -> None:
    check(tmp_path, adapter(), base={})


def base_of(folder: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "F8_E4M3") -> BaseModules:
    path = folder / "model.safetensors"
    path.write_bytes(safetensors(tensors, dtype))
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    (folder / "broken.safetensors").write_bytes(b"broken")
    return BaseModules.of(sorted(folder.iterdir()))


def test_base_modules_are_read_from_weights(tmp_path: Path) -> None:
    base = base_of(tmp_path, {"model.layers.0.mlp.up_proj.weight": (6, 4), "model.norm.weight": (4,)})
    assert base.conflicting_shape("x.layers.0.mlp.up_proj", (6, 4)) is None
    assert base.conflicting_shape("x.layers.0.mlp.up_proj", (4, 6)) == (6, 4)
    assert base.conflicting_shape("model.norm", (4, 6)) is None
    assert (base.has_block("layers.0.mlp.gate"), base.has_block("layers.1.mlp.gate")) == (True, False)


@pytest.mark.parametrize(
    "packed",
    [
        {"model.layers.0.self_attn.q_proj.qweight": (1, 1), "model.layers.0.self_attn.q_proj.scales": (1, 1)},
        {"model.layers.0.self_attn.q_proj.weight": (12, 1)},  # bitsandbytes
    ],
)
def test_quantized_base_accepts_any_shape(tmp_path: Path, packed: dict[str, tuple[int, ...]]) -> None:
    (tmp_path / "base").mkdir()
    base = base_of(tmp_path / "base", packed | {"model.embed_tokens.weight": (9, 4)}, "U8")
    validate_adapter(AdapterName("m", "x"), write(tmp_path / "x", adapter()), AdapterLimits(8, base))


def test_same_layer_names_in_two_towers(tmp_path: Path) -> None:
    """As in Gemma 3, whose vision and language towers use the same layer names."""
    base = {
        "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj": (3, 3),
        "language_model.model.layers.0.self_attn.q_proj": (6, 4),
    }
    check(tmp_path, adapter(), base)
    check(tmp_path, adapter(), dict(reversed(base.items())))
    assert "another base model" in refusal(tmp_path, adapter(pair(Q, 3, 6)), base)


def test_layers_with_other_names(tmp_path: Path) -> None:
    base = {"transformer.h.0.attn.c_proj": (4, 4), "transformer.h.0.mlp.c_proj": (4, 16)}
    check(tmp_path, adapter(pair("base_model.model.transformer.h.0.attn.c_proj", 4, 4)), base)
    check(tmp_path, adapter(pair("base_model.model.transformer.h.0.mlp.c_proj", 16, 4)), base)
    assert "another base" in refusal(tmp_path, adapter(pair("transformer.h.0.attn.c_proj", 16, 4)), base)


def test_config_of_these_tests_matches_peft() -> None:
    theirs = json.loads((DEMO / "adapters" / "pirate" / "adapter_config.json").read_text())
    assert CONFIG.keys() <= theirs.keys()
