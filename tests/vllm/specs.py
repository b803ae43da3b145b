"""Small models of many families, and the cache blocks that vLLM plans for them. No engine starts, and no weights exist.

`plan` runs in a process of its own, since vLLM keeps its state in the process. vLLM's own modules are built without
memory for their weights, and asked for their caches as vLLM's workers ask them. There is no GPU here: in place of the
CPU's attention, layers are given FlashAttention, which vLLM selects on most GPUs, and Triton's latent attention.

Sparse attention has no layers without a GPU. Its caches are built by hand from vLLM's classes, as the layers build them
(`vllm/model_executor/layers/attention/mla_attention.py` and `vllm/model_executor/models/deepseek_v2.py`).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rayllm.engine.vllm.engine import inspected_in_process
from rayllm.plan.architecture import read_architecture
from rayllm.plan.cache_layout import CacheLayout, cache_layout
from rayllm.plan.engine_arguments import engine_settings
from rayllm.plan.measure import own_draft, read_draft
from tests.vllm.checkpoint_tensors import checkpoint_tensors
from tests.vllm.spec_cases import CASES, SPARSE_CASES, WITHOUT_INDEX, Case

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
CACHE_BYTES = 2**30
TOKENS, BATCHED_TOKENS = 2048, 256


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
    return cache_layout(architecture.caches, settings), settings.in_flight


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

    if case.config["model_type"] == "bailing_hybrid":
        _register_ling()
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
        if config.model_config.hf_config.model_type in ("deepseek_v4", "kimi_linear"):
            _let_layers_use_gpus()
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = initialize_model(vllm_config=config)
            if config.speculative_config:
                _build_draft(config)
        weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
        return config, {"weights": weights, "tensors": checkpoint_tensors(folder), **_plan_on_gpu(config, case)}


def _let_layers_use_gpus() -> None:
    """Have layers take what only GPUs have: streams, events, and an index in 4 bits."""
    import torch
    from vllm.models.deepseek_v4 import attention

    torch.cuda.Event = torch.cuda.Stream = object  # type: ignore[misc,assignment]
    attention.dsa_indexer_uses_fp4 = lambda config: config.attention_config.indexer_kv_dtype == "mxfp4"


def _register_ling() -> None:
    """Have transformers read Ling's configuration, which otherwise is code beside the weights."""
    import transformers
    from vllm.transformers_utils.configs.bailing_moe_v3_vl import BailingMoeV3TextConfig

    transformers.AutoConfig.register("bailing_hybrid", BailingMoeV3TextConfig, exist_ok=True)


def _build_draft(config: Any) -> None:
    from vllm.config.utils import replace
    from vllm.model_executor.model_loader.utils import initialize_model

    draft = config.speculative_config.draft_model_config
    if config.speculative_config.uses_draft_model():
        initialize_model(vllm_config=replace(config, model_config=draft), prefix="draft_model")
    else:
        initialize_model(vllm_config=config, model_config=draft)


def count_sparse(config: Any, name: str) -> dict[str, Any]:
    """What vLLM plans for a model with sparse attention.

    Args:
        config: vLLM's configuration of another model, for the lengths of sequences and steps.
        name: the model.
    """
    of_blocks = SPARSE_CASES[name].config.get("sparse_attention_config")
    config.cache_config.block_size = 128 if of_blocks else 64
    return _planned(config, _specs_of_blocks(name) if of_blocks else _specs_of_tokens(name))


def _specs_of_blocks(name: str) -> dict[str, Any]:
    """The caches of attention to selected blocks, by `vllm/models/minimax_m3/nvidia/model.py`."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    values, specs = SPARSE_CASES[name].config, {}
    sparse, is_fp8 = values["sparse_attention_config"], "attention_config" in SPARSE_CASES[name].engine
    for layer, is_sparse in enumerate(sparse["sparse_attention_freq"]):
        specs[f"{layer}.attention"] = FullAttentionSpec(
            block_size=128,
            num_kv_heads=values["num_key_value_heads"],
            head_size=values["head_dim"],
            dtype=torch.bfloat16,
        )
        if is_sparse:
            specs[f"{layer}.index"] = MLAAttentionSpec(
                block_size=128,
                num_kv_heads=1,
                head_size=sparse["sparse_index_dim"],
                dtype=torch.float8_e4m3fn if is_fp8 else torch.bfloat16,
            )
    return specs


def _specs_of_tokens(name: str) -> dict[str, Any]:
    """The caches of attention to selected tokens, with latent vectors."""
    import torch
    from vllm.v1.kv_cache_interface import KVQuantMode, MLAAttentionSpec

    case, specs = SPARSE_CASES[name], {}
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
        if layer not in WITHOUT_INDEX.get(name, ()):
            size = case.config["index_head_dim"]
            specs[f"{layer}.index"] = MLAAttentionSpec(
                block_size=64, num_kv_heads=1, head_size=size + size // 128 * 4, dtype=torch.uint8
            )
    return specs


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
        if hasattr(layer, "kda_prefill_backend"):
            layer.kda_prefill_backend = _kernels_on_hopper(layer, config)
    Platform.update_block_size_for_backend(config)
    # The first choice of FlashAttention; DeepSeek V4's layers share blocks.
    cache.kv_cache_layout = "BLHNC" if config.model_config.hf_config.model_type == "deepseek_v4" else "LBNHC"
    config.parallel_config.pipeline_parallel_size = case.stages
    # The runner of GPUs decides how many steps run at once. Configurations that are read later refuse it here.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    try:
        return _planned(config, get_kv_cache_spec(config), case.stages)
    finally:
        del os.environ["VLLM_USE_V2_MODEL_RUNNER"]


def _kernels_on_hopper(layer: Any, config: Any) -> str:
    """The kernels that vLLM selects for Kimi delta attention, in place of the CPU's."""
    from vllm.models.kimi_k3.nvidia import kda
    from vllm.platforms.interface import DeviceCapability

    here = kda.current_platform
    kda.current_platform = SimpleNamespace(
        is_cuda=lambda: True,
        get_device_capability=lambda *_: DeviceCapability(9, 0),
        is_device_capability=lambda capability: capability == 90,
    )
    try:
        state = layer.get_state_dtype()[1]
        lower = layer.gate_lower_bound
        return str(kda.resolve_kda_prefill_backend("auto", layer.head_dim, config.model_config.dtype, state, lower))
    finally:
        kda.current_platform = here


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


def plan(root: Path) -> dict[str, dict[str, Any]]:
    """What vLLM plans for each model, or as `error` why it does not.

    Args:
        root: a folder for the models' files.
    """
    import torch

    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1", "VLLM_KIMI_K3_GEMM_AR": "0"}
    # On CPUs without AMX, vLLM switches the prefix cache off for latent attention; on GPUs it does not.
    torch.cpu._is_amx_tile_supported = lambda: True
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

    with inspected_in_process():
        for name in CASES | SPARSE_CASES:
            try:
                found[name] = count_one(name)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found
