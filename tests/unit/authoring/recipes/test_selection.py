"""What recipes set for the chosen GPUs, variants and features, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayllm.authoring.recipes.flags import FileKeys
from rayllm.authoring.recipes.placement import Choice
from rayllm.authoring.recipes.schema import load_recipe
from rayllm.authoring.recipes.selection import Selection, select
from rayllm.errors import ConfigError
from rayllm.sizing.gpus import find_gpu
from tests.unit.authoring.recipes.recipe_files import recipe, written

INSTALLED = "0.29.0+cpu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def on(accelerator: str, **choice: Any) -> Choice:
    return Choice(accelerator, find_gpu(accelerator), **choice)


def selected(folder: Path, choice: Choice, installed: str | None = INSTALLED, **changes: Any) -> Selection:
    return select(load_recipe(written(folder, **changes)), choice, installed, "recipe.yaml")


def refusal(folder: Path, choice: Choice, installed: str | None = INSTALLED, **changes: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        selected(folder, choice, installed, **changes)
    return refused.value.message


def test_the_first_variant_on_the_fewest_gpus_that_hold_it(folder: Path) -> None:
    found = selected(folder, on("H100"))
    # 216 GB of 4 × 85 GB, of which vLLM takes 92 %.
    assert (found.place.variant, found.place.tensor_parallel, found.place.pipeline_parallel) == ("default", 4, 1)
    assert found.model_id == "example/Heron-90B"
    assert found.keys.keys == {
        "engine_kwargs": {"trust_remote_code": True, "max_num_seqs": 64},
        "tool_calling": {"auto": True, "parser": "hermes"},
        "reasoning_parser": "qwen3",
        "vllm_version": ">=0.17.0",
    }
    assert found.keys.variables == {"VLLM_USE_DEEP_GEMM": "0"}


def test_without_gpus_the_least_memory_that_holds_the_first_variant(folder: Path) -> None:
    place = selected(folder, Choice()).place
    assert (place.accelerator, place.tensor_parallel) == ("B300", 1)
    assert selected(folder, Choice(tensor_parallel=4)).place.accelerator == "H100"


def test_fewer_gpus_take_the_next_variant(folder: Path) -> None:
    found = selected(folder, on("H100", tensor_parallel=2))
    assert (found.place.variant, found.model_id) == ("fp8", "example/Heron-90B-FP8")
    # Of its generation, which the others do not get.
    assert found.keys.engine["block_size"] == 64
    assert "block_size" not in selected(folder, on("A100-80G", tensor_parallel=2)).keys.engine


def test_what_hardware_adds(folder: Path) -> None:
    found = selected(folder, on("B200", variant="nvfp4"))
    assert found.place.tensor_parallel == 1
    assert found.keys.engine["kv_cache_dtype"] == "fp8"
    assert found.keys.variables == {"VLLM_USE_DEEP_GEMM": "0", "VLLM_USE_FLASHINFER_MOE_FP8": "1"}


def test_a_strategy_replaces_what_hardware_adds(folder: Path) -> None:
    override: dict[str, Any] = {"hardware_overrides": {"blackwell": {"extra_args": ["--max-num-seqs", "8"]}}}
    changes: dict[str, Any] = {
        "strategy_overrides": {"single_node_tep": override},
        "default_strategy": "single_node_tep",
    }
    found = selected(folder, on("B200", variant="default"), **changes)
    assert found.keys.variables == {"VLLM_USE_DEEP_GEMM": "0"}
    assert found.keys.engine == {"trust_remote_code": True, "max_num_seqs": 8, "enable_expert_parallel": True}


def test_degrees_of_the_recipe_count(folder: Path) -> None:
    variants = recipe()["variants"]
    variants["fp8"]["tp"] = {"h200": 1, "default": 8}
    assert selected(folder, on("H200", variant="fp8"), variants=variants).place.tensor_parallel == 1
    assert selected(folder, on("H100", variant="fp8"), variants=variants).place.tensor_parallel == 8
    overrides = {"single_node_tp": {"tp": 4}}
    assert selected(folder, on("H200"), strategy_overrides=overrides).place.tensor_parallel == 4
    floor = {"single_node_tp": 2, "h100": {"single_node_tp": 8}}
    assert selected(folder, on("H200", variant="fp8"), strategy_min_gpus=floor).place.tensor_parallel == 2
    assert selected(folder, on("H100", variant="fp8"), strategy_min_gpus=floor).place.tensor_parallel == 8
    said = refusal(folder, on("H100", variant="fp8", tensor_parallel=4), strategy_min_gpus=floor)
    assert "variant `fp8` needs at least 8 × H100" in said


def test_stages_across_nodes_where_the_recipe_has_them(folder: Path) -> None:
    large = {"default": {"precision": "bf16", "vram_minimum_gb": 1200}}
    assert "575 GB more than H100 × 8, of whose memory vLLM takes 92%" in refusal(folder, on("H100"), variants=large)
    strategies = ["single_node_tp", "multi_node_tp_pp"]
    place = selected(folder, on("H100"), variants=large, compatible_strategies=strategies).place
    assert (place.tensor_parallel, place.pipeline_parallel) == (8, 2)


def test_features_are_switched(folder: Path) -> None:
    found = selected(folder, on("B200", features=("spec_decoding",), without=("reasoning",)))
    assert found.keys.engine["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert "reasoning_parser" not in found.keys.keys
    found = selected(folder, on("B200", features=("spec_decoding=eagle3",)))
    assert found.keys.engine["speculative_config"]["model"] == "example/Heron-EAGLE3"
    variants = recipe()["variants"]
    variants["default"]["default_modes"] = {"spec_decoding": "mtp"}
    assert selected(folder, on("H100"), variants=variants).keys.engine["speculative_config"]["method"] == "mtp"


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(variant="fp6"), "--variant: `fp6` is no variant of recipe.yaml; did you mean `fp8`?"),
        (
            on("H100", features=("drafts",)),
            "--feature: the recipe has no feature `drafts`; it has tool_calling",
        ),
        (on("H100", without=("drafts",)), "--without-feature: the recipe has no feature `drafts`"),
        (on("H100", features=("spec_decoding=mtq",)), "`mtq` is no mode of `spec_decoding`; did you mean `mtp`?"),
        (on("H100", features=("spec_decoding=eagle3",)), "--feature: `spec_decoding` is not for h100."),
        (on("H100", features=("reasoning",), without=("reasoning",)), "`reasoning` is in both; keep one."),
        (
            on("H100", variant="nvfp4"),
            "variant `nvfp4` has nvfp4 weights, for blackwell GPUs and not H100.\nhint: `",
        ),
        (Choice("GB200"), "variant `default` needs --tensor-parallelism: the memory of GB200 is not known"),
    ],
)
def test_a_choice_that_the_recipe_does_not_have(folder: Path, choice: Choice, said: str) -> None:
    assert said in refusal(folder, choice)


def test_too_little_memory_is_counted_and_what_does_fit_is_named(folder: Path) -> None:
    assert refusal(folder, on("H100", variant="default", tensor_parallel=2)) == (
        "recipe.yaml: variant `default` takes 216 GB, 60 GB more than H100 × 2, of whose memory vLLM takes 92%.\n"
        "hint: `--variant default --accelerator-type H100 --tensor-parallelism 4` or "
        "`--variant fp8 --accelerator-type H100 --tensor-parallelism 2` or "
        "`--variant nvfp4 --accelerator-type B200 --tensor-parallelism 1` does."
    )


def test_the_installed_vllm_has_to_be_new_enough(folder: Path) -> None:
    model = recipe()["model"]
    assert selected(folder, on("H100"), "0.17.0")
    assert refusal(folder, on("H100"), "0.16.2") == (
        "recipe.yaml: model.min_vllm_version: it needs vLLM 0.17.0 or newer; vLLM 0.16.2 is installed."
    )
    assert refusal(folder, on("H100"), None).endswith("needs vLLM 0.17.0 or newer; no vLLM is installed.")
    nightly = model | {"min_vllm_version": "nightly", "nightly_required": True}
    assert "a build of vLLM that is not released yet" in refusal(folder, on("H100"), model=nightly)
    variants = recipe()["variants"]
    variants["fp8"]["min_vllm_version"] = "0.30.0"
    assert selected(folder, on("H100"), variants=variants)
    said = refusal(folder, on("H100", variant="fp8"), variants=variants)
    assert said.startswith("recipe.yaml: variants.fp8.min_vllm_version: it needs vLLM 0.30.0 or newer;")


def test_ways_to_spread_a_model_that_rayllm_lacks(folder: Path) -> None:
    said = refusal(folder, on("H100"), compatible_strategies=["pd_cluster", "single_node_dep"])
    assert said == (
        "recipe.yaml: compatible_strategies: pd_cluster, single_node_dep: RayLLM has none of them; "
        "it has single_node_tp, single_node_tep and multi_node_tp_pp."
    )


def test_dependencies_are_passed_on(folder: Path) -> None:
    dependencies = [
        {"command": "pip install crane", "note": "for its tokenizer", "optional": True},
        {"command": "pip install stork", "brand": "AMD"},
    ]
    model = recipe()["model"]
    notes = selected(folder, on("H100"), dependencies=dependencies, model=model).notes
    assert notes == (
        "the recipe installs, beside vLLM: pip install crane (for its tokenizer, optional)",
        "the recipe sets `trust_remote_code`, which runs Python code of the model's repository",
    )
    assert selected(folder, on("H100"), model=model | {"base_args": []}).notes == ()


def keys_of(*flags: str) -> FileKeys:
    keys = FileKeys()
    keys.add("base_args", flags)
    return keys


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (["--no-enable-prefix-caching"], {"engine_kwargs": {"enable_prefix_caching": False}}),
        (["--block-size=64", "--swap-space-0"][:1], {"engine_kwargs": {"block_size": 64}}),
        (["--max-model-len 8192"], {"max_request_context_length": 8192}),
        (["--gpu-memory-utilization", "0.9"], {"engine_kwargs": {"gpu_memory_utilization": 0.9}}),
        (["--tokenizer_mode", "mistral"], {"engine_kwargs": {"tokenizer_mode": "mistral"}}),
        (
            ["--attention_config.backend", "FLASHINFER", "-cc.pass_config.fuse_norm_quant=True"],
            {
                "engine_kwargs": {
                    "attention_config": {"backend": "FLASHINFER"},
                    "compilation_config": {"pass_config": {"fuse_norm_quant": True}},
                }
            },
        ),
        (
            ["--default-chat-template-kwargs", '{"thinking": true}'],
            {"chat_template_kwargs": {"thinking": True}},
        ),
    ],
)
def test_arguments_become_keys(flags: list[str], keys: dict[str, Any]) -> None:
    assert keys_of(*flags).keys == keys


def test_arguments_that_replicas_do_not_have_are_left_out_and_said() -> None:
    keys = keys_of("--host", "0.0.0.0", "--served-model-name", "heron", "--max-model-len", "auto")
    assert keys.keys == {}
    assert keys.left_out == [
        "base_args: `--host` is left out: the router and Ray Serve answer clients",
        "base_args: `--served-model-name` is left out: clients use `model_id`",
        "base_args: `--max-model-len auto` is left out: it is computed",
    ]
    keys.add("base_env", (), {"NCCL_SOCKET_IFNAME": "$IFACE_NAME", "A": "1"})
    assert keys.variables == {"A": "1"}
    assert "NCCL_SOCKET_IFNAME is left out: set it to your $IFACE_NAME" in keys.left_out[-1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--max-num-seq", "1"],
            "the installed vLLM has no argument `--max-num-seq`; did you mean",
        ),
        (["--calculate-kv-scales"], "base_args: `--calculate-kv-scales` was removed from vLLM after 0.27; "),
        (["64"], "base_args: `64` follows no argument of `vllm serve`"),
        (["-x", "1"], "base_args: `-x` is not known here; write the long form"),
        (["--data-parallel-size", "4"], "`--data-parallel-size` is not supported: replicas are what RayLLM multiplies"),
        (["--max-model-len", "lots"], "`--max-model-len` must be a whole number, not 'lots'."),
    ],
)
def test_arguments_that_vllm_does_not_have(flags: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        keys_of(*flags)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variant": {}}, "variant: unknown key; did you mean `variants`?"),
        ({"model": recipe()["model"] | {"minimum": 1}}, "model.minimum: unknown key"),
        (
            {"model": {key: value for key, value in recipe()["model"].items() if key != "min_vllm_version"}},
            "model.min_vllm_version: is required.",
        ),
        (
            {"model": recipe()["model"] | {"min_vllm_version": "new"}},
            "`new` is no version such as 0.17.0, nor",
        ),
        ({"variants": {"fp8": {"precision": "fp8", "vram_minimum_gb": 1}}}, "variants: needs the variant `default`."),
        ({"variants": {"default": {"precision": "fp8"}}}, "variants.default.vram_minimum_gb: is required."),
        ({"opt_in_features": ["drafts"]}, "opt_in_features: `drafts` is none of its features"),
        ({"omni": {"tasks": ["t2i"]}}, "`omni` is served by vLLM-Omni, not by vLLM, so RayLLM cannot serve it."),
        ({"meta": {"tasks": ["omni"]}}, "`omni` is served by vLLM-Omni"),
        ({"meta": {"tasks": ["cooking"]}}, "meta.tasks.0: input should be 'text'"),
    ],
)
def test_a_recipe_that_is_none_of_theirs(folder: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_recipe(written(folder, **changes))
    assert said in refused.value.message
    assert "Heron-90B.yaml" in refused.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "model_loading_config: {model_id: a}\n",
            "is a model file already; serve it with `rayllm run`: it lacks",
        ),
        ("meta: {}\n", "is no recipe: it lacks `model`, `variants`."),
        ("[]\n", "is no recipe: it is no mapping."),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_a_file_of_another_kind(folder: Path, text: str, said: str) -> None:
    (folder / "other.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_recipe(folder / "other.yaml")
    assert said in refused.value.message
