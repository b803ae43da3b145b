"""What is looked at before an engine sees an adapter."""

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
    """What is said against an adapter, after its name."""
    with pytest.raises(RequestError) as caught:
        check(folder, *args, **kwargs)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "model", "adapter_broken")
    assert str(folder) not in error.message
    before = "The adapter `m:x` cannot be used: "
    assert error.message.startswith(before)
    return error.message.removeprefix(before)


@pytest.mark.parametrize("name", ["pirate", "shout"])
def test_the_demos_own_adapters_are_taken(name: str) -> None:
    base = BaseModules.of((DEMO / "weights").glob("*.safetensors"))
    assert base.conflicting_shape("model.layers.0.mlp.down_proj", (1, 1))
    validate_adapter(AdapterName("rayllm-demo", name), DEMO / "adapters" / name, AdapterLimits(16, base))


@pytest.mark.parametrize(
    ("config", "said"),
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
def test_a_configuration_that_cannot_be_served_is_refused(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    assert refusal(tmp_path, adapter(**config)).startswith(said)


@pytest.mark.parametrize("config", [{"r": 8}, {"rank_pattern": {"q_proj": 8}}, {"rank_pattern": None}, {"new": [1]}])
def test_what_the_engine_takes_passes(tmp_path: Path, config: dict[str, Any]) -> None:
    check(tmp_path, adapter(**config))


@pytest.mark.parametrize("config", [b"{", b"", b"\xff", b"[" * 100_000, b"[]", b"7"], ids=lambda config: config[:3])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, config: bytes) -> None:
    assert refusal(tmp_path, adapter() | {"adapter_config.json": config}).startswith("adapter_config.json is no ")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    files = adapter()
    del files[name]
    assert refusal(tmp_path, files) == f"it has no {name}."


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    files = adapter()
    files["adapter_model.safetensors"] = files["adapter_model.safetensors"][:-1]
    assert refusal(tmp_path, files).startswith("adapter_model.safetensors: its size is not what its header says")


@pytest.mark.parametrize(
    ("shapes", "said"),
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
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], said: str) -> None:
    found = refusal(tmp_path, adapter(shapes))
    assert found.startswith("adapter_model.safetensors")
    assert said in found


def pair(module: str, in_size: int = 4, out_size: int = 6) -> dict[str, tuple[int, ...]]:
    return {f"{module}.{A}": (2, in_size), f"{module}.{B}": (out_size, 2)}


@pytest.mark.parametrize(
    "shapes",
    [
        pair("model.layers.0.self_attn.q_proj"),
        pair("base_model.model.language_model.model.layers.0.self_attn.q_proj"),
        {name.replace(".weight", ".default.weight"): shape for name, shape in pair(Q).items()},
        # Tokens were added, or the vocabulary is padded.
        pair("base_model.model.lm_head", 4, 12),
        pair("base_model.model.model.embed_tokens", 12, 4),
        # The checkpoint has them merged.
        pair(f"{LAYER}.qkv_proj", 5, 5),
        pair(Q) | pair("base_model.model.model.layers.0.new.x", 5, 5),
    ],
)
def test_other_spellings_and_what_cannot_be_known_pass(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    check(tmp_path, adapter(shapes))


def test_nothing_is_held_against_a_base_of_which_nothing_is_known(tmp_path: Path) -> None:
    check(tmp_path, adapter(), base={})


def base_of(folder: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "F8_E4M3") -> BaseModules:
    path = folder / "model.safetensors"
    path.write_bytes(safetensors(tensors, dtype))
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    (folder / "broken.safetensors").write_bytes(b"broken")
    return BaseModules.of(sorted(folder.iterdir()))


def test_a_base_is_told_from_its_files(tmp_path: Path) -> None:
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
def test_a_quantized_base_takes_adapters_of_any_size(tmp_path: Path, packed: dict[str, tuple[int, ...]]) -> None:
    (tmp_path / "base").mkdir()
    base = base_of(tmp_path / "base", packed | {"model.embed_tokens.weight": (9, 4)}, "U8")
    validate_adapter(AdapterName("m", "x"), write(tmp_path / "x", adapter()), AdapterLimits(8, base))


def test_layers_of_one_name_in_two_parts_are_told_apart_by_their_sizes(tmp_path: Path) -> None:
    """As in Gemma 3: the layers that see are named as those that write."""
    base = {
        "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj": (3, 3),
        "language_model.model.layers.0.self_attn.q_proj": (6, 4),
    }
    check(tmp_path, adapter(), base)
    check(tmp_path, adapter(), dict(reversed(base.items())))
    assert "another base model" in refusal(tmp_path, adapter(pair(Q, 3, 6)), base)


def test_layers_that_are_not_called_layers_are_told_apart_too(tmp_path: Path) -> None:
    base = {"transformer.h.0.attn.c_proj": (4, 4), "transformer.h.0.mlp.c_proj": (4, 16)}
    check(tmp_path, adapter(pair("base_model.model.transformer.h.0.attn.c_proj", 4, 4)), base)
    check(tmp_path, adapter(pair("base_model.model.transformer.h.0.mlp.c_proj", 16, 4)), base)
    assert "another base" in refusal(tmp_path, adapter(pair("transformer.h.0.attn.c_proj", 16, 4)), base)


def test_the_configuration_of_these_tests_is_pefts() -> None:
    theirs = json.loads((DEMO / "adapters" / "pirate" / "adapter_config.json").read_text())
    assert CONFIG.keys() <= theirs.keys()
