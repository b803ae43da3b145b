"""Engine arguments that change memory: drafts, offloading, quantization and the types of caches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import LocalSource
from rayllm.core.errors import ConfigError
from rayllm.plan.architecture import read_architecture
from rayllm.plan.engine_arguments import engine_settings, host_bytes, not_counted
from rayllm.plan.gpus import GIB
from rayllm.plan.measure import measure, measure_info
from rayllm.plan.weights import Weights
from rayllm.sources.inspection import ModelInfo
from rayllm.sources.safetensors import Tensor
from tests.unit.plan.test_architecture import LLAMA
from tests.unit.plan.test_fit import tensors

ARCHITECTURE = read_architecture(LLAMA)
WEIGHTS = str(Path(__file__).parents[3] / "models" / "rayllm-demo" / "weights")


def test_arguments_of_caches() -> None:
    arguments: dict[str, Any] = {
        "kv_cache_dtype": "fp8",
        "mamba_cache_dtype": "float32",
        "mamba_ssm_cache_dtype": "float16",
    }
    arguments |= {"enable_prefix_caching": False, "disable_hybrid_kv_cache_manager": True, "block_size": 32}
    caches = engine_settings(arguments, ARCHITECTURE, 2)
    assert (caches.element_bytes, caches.state_bytes, caches.matrix_bytes) == (1, 4, 2)
    assert (caches.keeps_prefixes, caches.keeps_all_tokens, caches.block) == (False, True, 32)
    defaults = engine_settings({}, ARCHITECTURE, 2)
    assert (defaults.element_bytes, defaults.matrix_bytes, defaults.keeps_prefixes) == (2, None, True)


def test_a_share_of_a_gpu_is_a_share_of_its_memory() -> None:
    assert engine_settings({}, ARCHITECTURE, 2, 0.5).utilization == 0.46
    assert engine_settings({"gpu_memory_utilization": 0.8}, ARCHITECTURE, 2, 0.5).utilization == 0.8


def test_the_type_of_the_index_is_read() -> None:
    types = ({}, {"indexer_kv_dtype": "mxfp4"}, {"indexer_kv_dtype": "fp8"})
    read = [engine_settings({"attention_config": each}, ARCHITECTURE, 2) for each in types]
    assert [settings.index_bits for settings in read] == [None, 4, 8]
    with pytest.raises(ConfigError, match="attention_config: must be a mapping"):
        engine_settings({"attention_config": "mxfp4"}, ARCHITECTURE, 2)


def test_steps_overlap_unless_turned_off() -> None:
    on, off = ({"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 512, "async_scheduling": False})
    assert [engine_settings(each, ARCHITECTURE, 2).in_flight for each in (on, off)] == [1024, 512]


def test_what_is_not_counted_is_said() -> None:
    arguments = {"cpu_offload_gb": 4, "mamba_cache_mode": "all", "use_replayssm": False, "quantization": "fp8"}
    assert not_counted(arguments) == ["cpu_offload_gb", "mamba_cache_mode"]
    named = {"backend": "FLASHINFER_MLA_SPARSE_DSV4"}
    assert not_counted({"attention_config": named}) == ["attention_backend"]
    assert not_counted({"attention_backend": "FLASHINFER_MLA_SPARSE_DSV4"}) == ["attention_backend"]


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({}, 0),
        ({"kv_offloading_size": 64}, 64 * GIB),
        ({"kv_offloading_size": 64, "kv_offloading_backend": "lmcache"}, 0),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector"}}, 0),
        (
            {
                "kv_transfer_config": {
                    "kv_connector": "OffloadingConnector",
                    "kv_connector_extra_config": {"cpu_bytes_to_use": 1000},
                }
            },
            1000,
        ),
        ({"kv_transfer_config": {"kv_connector": "SimpleCPUOffloadConnector"}}, 8 * GIB),
    ],
)
def test_offloaded_caches_are_on_the_host(arguments: dict[str, Any], size: int) -> None:
    assert host_bytes(arguments) == size


def info(config: dict[str, Any], files: dict[str, Tensor]) -> ModelInfo:
    return ModelInfo("m", config, files)


def test_only_the_weights_for_text_are_loaded() -> None:
    others = ("model.visual.blocks.0.attn.qkv.weight", "model.embed_audio.embedding_projection.weight", "mm_projector")
    whole = tensors(LLAMA) | {name: Tensor("BF16", (100, 10)) for name in others}
    arguments: list[dict[str, Any]] = [{}, {"language_model_only": True}]
    parameters = [measure_info(info(LLAMA, whole), False, arguments=each).weights.parameters for each in arguments]
    assert parameters == [8_030_261_248 + 3000, 8_030_261_248]


def test_formats_whose_files_are_read_are_counted() -> None:
    names = ("auto", "mistral", "safetensors", "bitsandbytes")
    assert [not_counted({"load_format": name}) for name in names] == [[], [], [], ["load_format"]]


def test_a_draft_adds_weights_and_caches() -> None:
    alone = measure_info(info(LLAMA, tensors(LLAMA)), False)
    arguments = {"speculative_config": {"method": "eagle3", "model": WEIGHTS, "num_speculative_tokens": 3}}
    drafted = measure_info(info(LLAMA, tensors(LLAMA)), False, arguments=arguments)
    demo = measure(LocalSource(path=WEIGHTS))
    assert drafted.weights.bytes == alone.weights.bytes + demo.weights.bytes
    assert drafted.weights.parameters == alone.weights.parameters
    assert drafted.architecture.caches == (*alone.architecture.caches, *demo.architecture.caches)
    assert drafted.architecture.layers == alone.architecture.layers


@pytest.mark.parametrize("name", ["model.layers.32.mlp.up_proj.weight", "mtp.layers.0.mlp.up_proj.weight"])
def test_layers_that_predict_more_tokens_count_as_a_draft_only(name: str) -> None:
    files = tensors(LLAMA) | {name: Tensor("BF16", (100, 10)), "mtp.embed_tokens.weight": Tensor("BF16", (9, 9))}
    config = LLAMA | {"num_nextn_predict_layers": 1}
    alone = measure_info(info(config, files), False)
    speculative = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    drafted = measure_info(info(config, files), False, arguments=speculative)
    assert drafted.weights.bytes - alone.weights.bytes == 2000
    assert len(drafted.architecture.caches) == 33
    assert drafted.draft_layers == 1


def test_a_draft_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "draft")
    (tmp_path / "draft" / "config.json").write_text(json.dumps({"model_type": "medusa"}))
    speculative = {"method": "eagle", "model": str(tmp_path / "draft")}
    with pytest.raises(
        ConfigError, match=r"speculative_config\.model: config\.json: the memory of the family `medusa`"
    ):
        measure_info(info(LLAMA, tensors(LLAMA)), False, arguments={"speculative_config": speculative})


@pytest.mark.parametrize(
    ("speculative", "said"),
    [
        ({"method": "medusa"}, r"speculative_config\.method: `medusa` is not supported here; use ngram"),
        ({"method": "eagle3"}, r"speculative_config\.model: the method `eagle3` needs a model"),
        ({"method": "mtp"}, "config.json sets neither num_nextn_predict_layers"),
    ],
)
def test_drafts_that_cannot_be_counted(speculative: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measure_info(info(LLAMA, tensors(LLAMA)), False, arguments={"speculative_config": speculative})


def test_layers_that_predict_more_tokens_are_bounded() -> None:
    config = LLAMA | {"num_nextn_predict_layers": 2**40}
    with pytest.raises(ConfigError, match="num_nextn_predict_layers: 1099511627776 is more than the 10,000"):
        measure_info(info(config, tensors(LLAMA)), False, arguments={"speculative_config": {"method": "mtp"}})


def test_ngrams_need_no_weights() -> None:
    speculative = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert measure_info(info(LLAMA, tensors(LLAMA)), False, arguments=speculative).weights.draft is None


def test_weights_that_are_quantized_when_they_are_loaded() -> None:
    plain = measure_info(info(LLAMA, tensors(LLAMA)), False).weights
    fp8 = measure_info(info(LLAMA, tensors(LLAMA)), False, arguments={"quantization": "fp8"}).weights
    # Not the vocabulary on both ends, nor the norms.
    kept = 2 * (2 * 128256 * 4096 + 65 * 4096)
    assert fp8.bytes == (plain.bytes - kept) // 2 + kept
    with pytest.raises(ConfigError, match=r"quantization: `awq` is not supported here for weights that are not"):
        measure_info(info(LLAMA, tensors(LLAMA)), False, arguments={"quantization": "awq"})


@pytest.mark.parametrize(
    ("quantization", "files"),
    [
        (
            {"quant_method": "mxfp4"},
            {"blocks": Tensor("U8", (4, 64, 8, 16)), "gate_up_proj_scales": Tensor("U8", (4, 64, 8))},
        ),
        (
            {"quant_method": "fp8"},
            {"weight": Tensor("F8_E4M3", (256, 256)), "weight_scale_inv": Tensor("F32", (2, 2))},
        ),
        (
            {"quant_method": "awq", "bits": 4},
            {"qweight": Tensor("I32", (256, 32)), "scales": Tensor("F16", (2, 256)), "qzeros": Tensor("I32", (2, 32))},
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
            {"weight_packed": Tensor("I32", (256, 32)), "weight_scale": Tensor("BF16", (256, 8))},
        ),
    ],
)
def test_packed_parameters_are_counted_and_scales_are_not(
    quantization: dict[str, Any], files: dict[str, Tensor]
) -> None:
    config = LLAMA | {"quantization_config": quantization}
    files = {f"model.layers.0.mlp.{name}": tensor for name, tensor in files.items()}
    measured = measure_info(info(config, files), False)
    assert measured.weights.parameters == 256 * 256
    assert measured.weights.bytes == sum(tensor.stored_bytes for tensor in files.values())


def test_experts_in_4_bits_beside_weights_in_8_are_counted() -> None:
    files = {
        "model.layers.0.self_attn.q_proj.weight": Tensor("F8_E4M3", (256, 256)),
        "model.layers.0.mlp.experts.0.up_proj.weight": Tensor("I8", (256, 128)),
        "model.layers.0.mlp.experts.0.up_proj.weight_scale": Tensor("F8_E8M0", (256, 8)),
    }
    config = LLAMA | {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}
    assert measure_info(info(config, files), False).weights.parameters == 2 * 256 * 256


def test_matrices_of_states_are_in_32_bits() -> None:
    weights = Weights({"model.layers.0.mixer.A_log": Tensor("BF16", (64,))}, ARCHITECTURE, 2)
    assert weights.bytes == 256
