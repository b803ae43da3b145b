"""Small models of many families, and the cache blocks that vLLM plans for them. No engine starts, and no weights exist.

A program of its own, `python -m tests.vllm.specs FOLDER`, since vLLM keeps its state in the process. vLLM's own modules
are built without memory for their weights, and asked for their caches as vLLM's workers ask them. There is no GPU here:
in place of the CPU's attention, layers are given FlashAttention, which vLLM selects on most GPUs, and Triton's latent
attention.

Sparse attention has no layers without a GPU. Its caches are built by hand from vLLM's classes, as the layers build them
(`vllm/model_executor/layers/attention/mla_attention.py` and `vllm/model_executor/models/deepseek_v2.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rayllm.sizing.architecture import read_architecture
from rayllm.sizing.cache_layout import CacheLayout, cache_layout
from rayllm.sizing.engine_arguments import engine_settings
from rayllm.sizing.speculation import own_draft, read_draft

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
CACHE_BYTES = 2**30
TOKENS, BATCHED_TOKENS = 2048, 256


@dataclass(frozen=True)
class Case:
    """A model's config.json, how its engine runs, the config.json of its draft, and its pipeline stages."""

    config: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] | None = None
    stages: int = 1


_BASE = {
    "vocab_size": 3072,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def _config(family: str, architecture: str, **values: Any) -> dict[str, Any]:
    return {**_BASE, "model_type": family, "architectures": [architecture], **values}


def _types(pattern: str, **names: str) -> list[str]:
    return [names[letter] for letter in pattern]


_QWEN3_NEXT = _config(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    **_DELTA,
    **_EXPERTS,
    shared_expert_intermediate_size=64,
    norm_topk_prob=True,
    pad_token_id=0,
)
_NEMOTRON = _config(
    "nemotron_h",
    "NemotronHForCausalLM",
    hybrid_override_pattern="M-M*M-M-",
    mamba_num_heads=8,
    mamba_head_dim=32,
    n_groups=2,
    ssm_state_size=16,
    conv_kernel=4,
)
_LFM2 = _config(
    "lfm2",
    "Lfm2ForCausalLM",
    conv_dim=128,
    conv_L_cache=3,
    block_dim=128,
    block_ff_dim=256,
    layer_types=_types("ccfccfcc", c="conv", f="full_attention"),
)
_GEMMA4 = _config(
    "gemma4_text",
    "Gemma4ForCausalLM",
    sliding_window=64,
    global_head_dim=64,
    num_kv_shared_layers=2,
    hidden_size_per_layer_input=0,
    layer_types=_types("sssfsssf", s="sliding_attention", f="full_attention"),
)
_LLAMA4 = _config(
    "llama4_text",
    "Llama4ForCausalLM",
    attention_chunk_size=128,
    num_local_experts=4,
    num_experts_per_tok=1,
    intermediate_size_mlp=256,
    interleave_moe_layer_step=2,
)
_WHISPER = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "is_encoder_decoder": True,
    "vocab_size": 3072,
    "d_model": 128,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 80,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1),
    "dtype": "bfloat16",
}
_GPT_OSS = _config(
    "gpt_oss", "GptOssForCausalLM", num_local_experts=4, num_experts_per_tok=2, sliding_window=64, num_hidden_layers=8
)

CASES: dict[str, Case] = {
    "llama": Case(_config("llama", "LlamaForCausalLM")),
    "llama-fp8": Case(_config("llama", "LlamaForCausalLM"), {"kv_cache_dtype": "fp8"}),
    "gpt-oss": Case(_GPT_OSS),
    "gpt-oss-all-tokens": Case(_GPT_OSS, {"disable_hybrid_kv_cache_manager": True}),
    "gemma-3": Case(_config("gemma3_text", "Gemma3ForCausalLM", sliding_window=64, query_pre_attn_scalar=32)),
    "gemma-4": Case(_GEMMA4),
    "gemma-4-few-heads": Case(
        {**_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}
    ),
    "llama-4": Case(_LLAMA4),
    "deepseek-v3": Case(_config("deepseek_v3", "DeepseekV3ForCausalLM", **_LATENT)),
    "qwen3-next": Case(_QWEN3_NEXT),
    "qwen3-next-fp8": Case(_QWEN3_NEXT, {"kv_cache_dtype": "fp8"}),
    "qwen3-next-no-prefixes": Case(_QWEN3_NEXT, {"enable_prefix_caching": False}),
    "qwen3-next-state-32": Case(_QWEN3_NEXT, {"mamba_ssm_cache_dtype": "float32"}),
    "lfm2": Case(_LFM2),
    "nemotron-h": Case(_NEMOTRON),
    "granite-hybrid": Case(
        _config(
            "granitemoehybrid",
            "GraniteMoeHybridForCausalLM",
            **_MAMBA,
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=64,
            layer_types=_types("mmmammma", m="mamba", a="attention"),
        )
    ),
    "falcon-h1": Case(_config("falcon_h1", "FalconH1ForCausalLM", **_MAMBA, mamba_d_ssm=256)),
    "jamba": Case(
        _config(
            "jamba",
            "JambaForCausalLM",
            **{**_MAMBA, "mamba_dt_rank": 8},
            num_experts=4,
            num_experts_per_tok=2,
            attn_layer_period=4,
            attn_layer_offset=2,
        )
    ),
    "mamba": Case(
        {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "vocab_size": 3072,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "state_size": 16,
            "conv_kernel": 4,
            "time_step_rank": 8,
            "dtype": "bfloat16",
        }
    ),
    "mamba-2": Case(
        {
            "model_type": "mamba2",
            "architectures": ["Mamba2ForCausalLM"],
            "vocab_size": 3072,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_heads": 8,
            "head_dim": 32,
            "n_groups": 1,
            "state_size": 16,
            "conv_kernel": 4,
            "expand": 2,
            "dtype": "bfloat16",
        }
    ),
    "whisper": Case(_WHISPER, {"max_model_len": 448, "max_num_batched_tokens": 1500}),
    "llama-eagle-3": Case(
        _config("llama", "LlamaForCausalLM"),
        {"speculative_config": {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}},
        _config("llama", "LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=3072),
    ),
    "llama-draft": Case(
        _config("llama", "LlamaForCausalLM"),
        {"speculative_config": {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}},
        _config("llama", "LlamaForCausalLM", num_hidden_layers=3, num_key_value_heads=1),
    ),
    "gpt-oss-eagle-3": Case(
        {**_GPT_OSS, "num_hidden_layers": 12},
        {"speculative_config": {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}},
        _config("llama", "LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=3072),
    ),
    "qwen3-next-mtp": Case(
        {**_QWEN3_NEXT, "num_nextn_predict_layers": 1},
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
    ),
    "deepseek-v3-mtp": Case(
        {**_config("deepseek_v3", "DeepseekV3ForCausalLM", **_LATENT), "num_nextn_predict_layers": 1},
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    ),
    "mistral-sliding": Case(_config("mistral", "MistralForCausalLM", sliding_window=128)),
    "cohere-2": Case(_config("cohere2", "Cohere2ForCausalLM", sliding_window=128, tie_word_embeddings=True)),
    "olmo-3": Case(_config("olmo3", "Olmo3ForCausalLM", sliding_window=128)),
    "glm-4-moe": Case(
        _config("glm4_moe", "Glm4MoeForCausalLM", **_EXPERTS, n_routed_experts=4, n_shared_experts=1, n_group=1)
    ),
    "llama-2-stages": Case(_config("llama", "LlamaForCausalLM"), stages=2),
    "gpt-oss-2-stages": Case(_GPT_OSS, stages=2),
    "gemma-3-2-stages": Case(
        _config("gemma3_text", "Gemma3ForCausalLM", sliding_window=64, query_pre_attn_scalar=32), stages=2
    ),
    "qwen3-next-2-stages": Case(_QWEN3_NEXT, stages=2),
    "llama-2-gpus": Case(_config("llama", "LlamaForCausalLM"), {"tensor_parallel_size": 2}),
    "llama-4-gpus": Case(_config("llama", "LlamaForCausalLM"), {"tensor_parallel_size": 4}),
    "deepseek-v3-2-gpus": Case(_config("deepseek_v3", "DeepseekV3ForCausalLM", **_LATENT), {"tensor_parallel_size": 2}),
    "qwen3-next-2-gpus": Case(_QWEN3_NEXT, {"tensor_parallel_size": 2}),
    "nemotron-h-2-gpus": Case(_NEMOTRON, {"tensor_parallel_size": 2}),
    "nemotron-h-one-group-4-gpus": Case({**_NEMOTRON, "n_groups": 1}, {"tensor_parallel_size": 4}),
}


_SPARSE = {**_LATENT, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048, "index_head_dim": 128}
SPARSE_CASES: dict[str, Case] = {
    "deepseek-v3.2": Case(_config("deepseek_v32", "DeepseekV32ForCausalLM", **_SPARSE)),
    "deepseek-v3.2-fp8": Case(_config("deepseek_v32", "DeepseekV32ForCausalLM", **_SPARSE), {"kv_cache_dtype": "fp8"}),
    "glm-5": Case(_config("glm_moe_dsa", "GlmMoeDsaForCausalLM", **_SPARSE, index_topk_freq=4)),
}
# Layers that have no index of their own in a model that computes one every fourth layer.
_WITHOUT_INDEX = {"glm-5": (2, 3, 4, 6, 7)}


def computed(case: Case) -> tuple[CacheLayout, int]:
    """The layout that `rayllm plan` computes for a model, and the tokens of all steps that run at once."""
    architecture = read_architecture(case.config)
    proposing = read_draft(case.engine, case.config, {})
    if proposing.layers:
        draft = own_draft(architecture, {}, proposing.layers)[0]
        architecture = replace(architecture, caches=(*architecture.caches, *draft.caches))
    elif case.draft:
        architecture = replace(architecture, caches=(*architecture.caches, *read_architecture(case.draft).caches))
    settings = engine_settings({"max_num_batched_tokens": BATCHED_TOKENS, **case.engine}, architecture, 2)
    settings = replace(
        settings, tensor_parallel=case.engine.get("tensor_parallel_size", 1), pipeline_parallel=case.stages
    )
    return cache_layout(architecture.caches, settings.caches), settings.in_flight


def write(folder: Path, config: dict[str, Any]) -> None:
    """Write a model's files, without weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(WEIGHTS / name, folder / name)


def count(folder: Path, case: Case) -> tuple[Any, dict[str, Any]]:
    """What vLLM plans for a model on a GPU: its blocks, and the longest sequences that fit at once."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    arguments = {"max_model_len": TOKENS, "max_num_batched_tokens": BATCHED_TOKENS, **case.engine}
    if case.draft:
        write(folder / "draft", case.draft)
        arguments["speculative_config"] = {**case.engine["speculative_config"], "model": str(folder / "draft")}
    config = EngineArgs(
        model=str(folder), load_format="dummy", enforce_eager=True, seed=0, **arguments
    ).create_engine_config()
    with set_current_vllm_config(config):
        _start_distributed(folder.parent / "rendezvous")
        # Layers see their share of the GPUs. They never run, so nothing is sent to the others.
        get_tp_group().world_size = config.parallel_config.tensor_parallel_size
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = initialize_model(vllm_config=config)
            if config.speculative_config:
                _build_draft(config)
        weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
        return config, {"weights": weights, "tensors": _tensors(folder), **_plan_on_gpu(config, case)}


def _build_draft(config: Any) -> None:
    from vllm.config.utils import replace
    from vllm.model_executor.model_loader.utils import initialize_model

    draft = config.speculative_config.draft_model_config
    if config.speculative_config.uses_draft_model():
        initialize_model(vllm_config=replace(config, model_config=draft), prefix="draft_model")
    else:
        initialize_model(vllm_config=config, model_config=draft)


def _tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a checkpoint of the model, by transformers."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    is_speech = config.model_type == "whisper"
    kind = transformers.AutoModelForSpeechSeq2Seq if is_speech else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in kind.from_config(config).named_parameters()}


def count_sparse(config: Any, name: str) -> dict[str, Any]:
    """What vLLM plans for a model with sparse attention.

    Args:
        config: vLLM's configuration of another model, for the lengths of sequences and steps.
        name: the model.
    """
    import torch
    from vllm.v1.kv_cache_interface import KVQuantMode, MLAAttentionSpec

    case, specs = SPARSE_CASES[name], {}
    config.cache_config.block_size = 64
    is_fp8 = "kv_cache_dtype" in case.engine
    for layer in range(case.config["num_hidden_layers"]):
        specs[f"{layer}.attention"] = MLAAttentionSpec(
            block_size=64,
            num_kv_heads=1,
            head_size=case.config["kv_lora_rank"] + case.config["qk_rope_head_dim"],
            dtype=torch.uint8 if is_fp8 else torch.bfloat16,
            kv_quant_mode=KVQuantMode.FP8_PER_TENSOR if is_fp8 else KVQuantMode.NONE,
            cache_dtype_str="fp8_ds_mla" if is_fp8 else "auto",
            state_content_bytes=656 if is_fp8 else None,
        )
        if layer not in _WITHOUT_INDEX.get(name, ()):
            size = case.config["index_head_dim"]
            specs[f"{layer}.index"] = MLAAttentionSpec(
                block_size=64, num_kv_heads=1, head_size=size + size // 128 * 4, dtype=torch.uint8
            )
    return _planned(config, specs)


def _start_distributed(rendezvous: Path) -> None:
    from torch.distributed import is_initialized
    from vllm.distributed.parallel_state import (
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    if not is_initialized():
        init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
    # Which groups there are depends on the model.
    destroy_model_parallel()
    initialize_model_parallel(1, 1)


def _plan_on_gpu(config: Any, case: Case) -> dict[str, Any]:
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.platforms.interface import Platform
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
    from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    # What vLLM changes on CPUs.
    config.scheduler_config.async_scheduling = True
    cache = config.cache_config
    cache.block_size, cache.mamba_page_size_padded = 16, None
    cache.mamba_ssm_cache_dtype = case.engine.get("mamba_ssm_cache_dtype", "auto")
    if hook := MODELS_CONFIG_MAP.get(config.model_config.architecture):
        hook.verify_and_update_config(config)
    for layer in config.compilation_config.static_forward_context.values():
        if hasattr(layer, "attn_backend"):
            layer.attn_backend = TritonMLABackend if layer.attn_backend.is_mla() else FlashAttentionBackend
    Platform.update_block_size_for_backend(config)
    # The first choice of FlashAttention.
    cache.kv_cache_layout = "LBNHC"
    config.parallel_config.pipeline_parallel_size = case.stages
    # The runner of GPUs decides how many steps run at once. Configurations that are read later refuse it here.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    try:
        return _planned(config, get_kv_cache_spec(config), case.stages)
    finally:
        del os.environ["VLLM_USE_V2_MODEL_RUNNER"]


def _planned(config: Any, specs: dict[str, Any], stages: int = 1) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs, get_max_concurrency_for_kv_cache_config

    layers = len(specs) // stages
    split = [dict(islice(specs.items(), stage * layers, (stage + 1) * layers)) for stage in range(stages)]
    planned = get_kv_cache_configs(config, split, [CACHE_BYTES] * stages)[0]
    return {
        "blocks": planned.num_blocks,
        "block": config.cache_config.block_size,
        "sequences": get_max_concurrency_for_kv_cache_config(config, planned),
    }


def main(root: Path) -> None:
    """Print what vLLM plans for each model, or as `error` why it does not."""
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    found: dict[str, Any] = {}
    config: Any = None

    def count_one(name: str) -> dict[str, Any]:
        nonlocal config
        if name in SPARSE_CASES:
            config.parallel_config.tensor_parallel_size = 1
            return count_sparse(config, name)
        write(root / name, CASES[name].config)
        config, counted = count(root / name, CASES[name])
        return counted

    for name in CASES | SPARSE_CASES:
        try:
            found[name] = count_one(name)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
