"""What the workers of real engines say of adapters' tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayllm.config.vllm_versions import PINNED, current_series
from tests.vllm import architectures

Shapes = dict[str, list[int]]
RANK = 4


def pair(module: str, came_in: int, came_out: int) -> Shapes:
    return {f"{module}.lora_A.weight": [RANK, came_in], f"{module}.lora_B.weight": [came_out, RANK]}


def layers(model: Any) -> Shapes:
    """An adapter for all linear layers of transformers' model, and for its embeddings, as PEFT names them."""
    import torch

    found: Shapes = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            found |= pair(f"base_model.model.{name}", module.in_features, module.out_features)
    embeddings = model.get_input_embeddings()
    prefix = "base_model.model.model.embed_tokens.lora_embedding_"
    return found | {f"{prefix}A": [RANK, embeddings.num_embeddings], f"{prefix}B": [embeddings.embedding_dim, RANK]}


EXPERT = "base_model.model.model.layers.1.mlp.experts.{}.{}_proj"
EXPERTS = {kind: [EXPERT.format(number, kind) for number in range(4)] for kind in ("gate", "up", "down")}
GATES: Shapes = {}
DOWNS: Shapes = {}
for _gate, _up, _down in zip(*EXPERTS.values(), strict=True):
    GATES |= pair(_gate, 128, 64) | pair(_up, 128, 64)
    DOWNS |= pair(_down, 64, 128)
FUSED = "base_model.model.model.layers.0.mlp.experts"
FUSED_GATES, FUSED_DOWNS = pair(f"{FUSED}.base_layer", 128, 512), pair(FUSED, 256, 128)
IN_PROJ = "layers.0.mixer.in_proj"
# Architecture → changes to its engine, and adapters.
CASES: dict[str, tuple[dict[str, Any], dict[str, Shapes]]] = {
    # Has layers of several kinds, and other names in its checkpoints than in vLLM.
    "nemotron-3": (
        {},
        {
            "checkpoint": pair(f"base_model.model.backbone.{IN_PROJ}", 128, 292),
            "twice": pair(f"base_model.model.backbone.{IN_PROJ}", 128, 292)
            | pair(f"base_model.model.model.{IN_PROJ}", 128, 292),
            "multimodal": pair(f"base_model.model.language_model.model.{IN_PROJ}", 128, 292),
            "beyond": pair("base_model.model.model.layers.9.mixer.in_proj", 128, 292),
            "sizes": pair(f"base_model.model.model.{IN_PROJ}", 127, 300),
            "skipped": pair("base_model.model.mtp.layers.0.mixer.up_proj", 1, 1)
            | {"base_model.model.model.embed_tokens.base_layer.weight": [9, 9]},
            "smaller-head": pair("base_model.model.lm_head", 128, 100),
            "larger-head": pair("base_model.model.lm_head", 128, 10_000),
            "unknown": {"x": [1], "": [], "base_model.model.score.weight": [2, 2], ".lora_A.weight": [RANK, 1]},
        },
    ),
    "deepseek-v3": ({}, {"experts": GATES | DOWNS, "gates": GATES}),
    # Keeps the matrices of all experts of a layer together.
    "gpt-oss": ({}, {"experts": FUSED_GATES | FUSED_DOWNS, "gates": FUSED_GATES}),
    "qwen3": (
        {"runner": "pooling", "convert": "embed", "lora_target_modules": ["qkv_proj"]},
        {"bare": pair("base_model.model.layers.0.self_attn.q_proj", 128, 128)},
    ),
}


Said = dict[str, dict[str, Any] | str]


def ask(root: Path) -> Said:
    """By architecture and adapter: its tensors, and what a worker says of them. Or why there is no engine."""
    architectures.prepare_environment()
    from vllm.distributed import cleanup_dist_env_and_memory

    found: Said = {}
    for name, (changes, adapters) in CASES.items():
        asked = {"layers": layers(architectures._make(name, root / name)), **adapters}
        extension = "rayllm.engine.vllm.lora_worker.LoraWorker"
        try:
            engine = architectures.start_engine(
                root / name, enable_lora=True, max_lora_rank=8, worker_extension_cls=extension, **changes
            )
        except (AssertionError, NotImplementedError) as error:
            found[name] = str(error)
        else:
            found[name] = {
                adapter: (shapes, engine.collective_rpc("check_lora_tensors", args=(shapes,))[0])
                for adapter, shapes in asked.items()
            }
        cleanup_dist_env_and_memory()
    return found


@pytest.fixture(scope="module")
def said(run_forked: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """Returns the tensors of an adapter, and what a worker of an architecture says of them."""
    found: Said = run_forked(ask, tmp_path_factory.mktemp("adapters"))

    def of(name: str, adapter: str) -> Any:
        replies = found[name]
        if isinstance(replies, str):
            assert current_series() != PINNED, replies
            pytest.skip(f"this vLLM's CPU build does not run it: {replies}")
        return replies[adapter]

    return of


def unapplied(shapes: Shapes, reply: dict[str, Any]) -> set[str]:
    return {name.partition(".lora_")[0].removeprefix("base_model.model.") for name in shapes.keys() - reply["applied"]}


@pytest.mark.parametrize(
    ("name", "absent"), [("nemotron-3", set()), ("deepseek-v3", {"lm_head", "model.embed_tokens"})]
)
def test_layers_of_transformers_are_applied_and_of_the_size_that_transformers_gives_them(
    said: Callable[[str, str], Any], name: str, absent: set[str]
) -> None:
    shapes, reply = said(name, "layers")
    assert unapplied(shapes, reply) == absent
    assert set(reply["applied"].values()) == {0}
    assert (reply["skipped"], reply["missing"]) == ([], "")


def test_names_are_those_of_checkpoints_too(said: Callable[[str, str], Any]) -> None:
    shapes, reply = said("nemotron-3", "checkpoint")
    assert reply["applied"] == dict.fromkeys(shapes, 0)


@pytest.mark.parametrize("adapter", ["multimodal", "beyond", "unknown"])
def test_what_matches_no_module_is_not_applied(said: Callable[[str, str], Any], adapter: str) -> None:
    _, reply = said("nemotron-3", adapter)
    assert (reply["applied"], reply["skipped"]) == ({}, [])
    assert reply["examples"]["in_proj"] == f"model.{IN_PROJ}"


def test_of_two_tensors_for_one_module_only_one_is_applied(said: Callable[[str, str], Any]) -> None:
    shapes, reply = said("nemotron-3", "twice")
    assert list(reply["applied"]) == list(shapes)[:2]


def test_sizes_that_do_not_fit_are_told(said: Callable[[str, str], Any]) -> None:
    shapes, reply = said("nemotron-3", "sizes")
    assert reply["applied"] == dict(zip(shapes, (128, 292), strict=True))


def test_a_head_may_leave_out_what_pads_the_vocabulary(said: Callable[[str, str], Any]) -> None:
    _, smaller = said("nemotron-3", "smaller-head")
    assert list(smaller["applied"].values()) == [0, 0]
    _, larger = said("nemotron-3", "larger-head")
    first, last = larger["applied"].values()
    assert first == 0
    assert 0 < last < 10_000


def test_what_vllm_skips_on_purpose_is_no_fault(said: Callable[[str, str], Any]) -> None:
    shapes, reply = said("nemotron-3", "skipped")
    assert (reply["applied"], reply["skipped"]) == ({}, list(shapes))


@pytest.mark.parametrize(
    ("name", "missing"),
    [("deepseek-v3", "model.layers.1.mlp.experts.0.down_proj"), ("gpt-oss", "model.layers.0.mlp.experts")],
)
def test_experts_are_applied_together(said: Callable[[str, str], Any], name: str, missing: str) -> None:
    shapes, reply = said(name, "experts")
    assert (reply["applied"], reply["missing"]) == (dict.fromkeys(shapes, 0), "")
    shapes, reply = said(name, "gates")
    assert (reply["applied"], reply["missing"]) == (dict.fromkeys(shapes, 0), missing)


def test_only_target_modules_are_applied_and_those_of_an_embedder_under_either_name(
    said: Callable[[str, str], Any],
) -> None:
    shapes, reply = said("qwen3", "layers")
    assert {name.partition(".lora_")[0].rpartition(".")[2] for name in reply["applied"]} == {
        "q_proj",
        "k_proj",
        "v_proj",
    }
    assert reply["examples"].keys() == {"q_proj", "k_proj", "v_proj"}
    shapes, reply = said("qwen3", "bare")
    assert reply["applied"] == dict.fromkeys(shapes, 0)
