"""What an engine's workers say of an adapter, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rayllm.engine.vllm.adapters import _BrokenAdapterError, check_replies

Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
NAMES = [Q.format(layer, side) for layer in (0, 1) for side in "AB"]
SHAPES = {name: [8, 8] for name in NAMES}


def reply(*applied: str, **more: Any) -> dict[str, Any]:
    examples = {"o_proj": "model.layers.0.self_attn.o_proj", "q_proj": "model.layers.0.self_attn.q_proj"}
    return {"applied": dict.fromkeys(applied, 0), "skipped": [], "missing": "", "examples": examples} | more


def refusal(*replies: dict[str, Any], target_modules: Sequence[str] | None = None) -> str:
    with pytest.raises(_BrokenAdapterError) as caught:
        check_replies(SHAPES, replies, target_modules)
    return str(caught.value)


def test_each_tensor_may_be_applied_by_another_worker() -> None:
    """As with pipeline parallelism; with tensor parallelism all say the same."""
    check_replies(SHAPES, [reply(*NAMES[:2]), reply(*NAMES[2:])])
    check_replies(SHAPES, [reply(*NAMES), reply(*NAMES)])


def test_what_is_skipped_on_purpose_need_not_be_applied_unless_it_is_all() -> None:
    check_replies(SHAPES, [reply(*NAMES[:3], skipped=[NAMES[3]])])
    assert refusal(reply(skipped=NAMES)) == (
        f"adapter_model.safetensors: vLLM skips all its tensors, such as `{NAMES[0]}`."
    )


def test_the_first_that_no_worker_applies_is_named_and_a_module_that_the_base_has() -> None:
    assert refusal(reply(*NAMES[:1]), reply(*NAMES[2:])) == (
        f"adapter_model.safetensors: `{NAMES[1]}` would not be applied. The modules of this model that take adapters "
        "have names such as `model.layers.0.self_attn.q_proj`."
    )


def test_a_module_of_another_kind_is_named_where_there_is_none_of_the_same() -> None:
    other = reply(examples={"wq": "layers.0.wq"})
    assert refusal(other, target_modules=["wq", "wo"]).endswith(
        "that take adapters (engine_kwargs.lora_target_modules: wq, wo) have names such as `layers.0.wq`."
    )


def test_a_size_that_does_not_fit_is_named() -> None:
    said = refusal(reply(*NAMES) | {"applied": dict.fromkeys(NAMES, 0) | {NAMES[2]: 16}})
    assert said.startswith(f"adapter_model.safetensors: `{NAMES[2]}` has the shape (8, 8), and this model has 16 feat")


def test_experts_are_adapted_together() -> None:
    assert "lacks `experts.1.up_proj`" in refusal(reply(*NAMES), reply(*NAMES, missing="experts.1.up_proj"))
