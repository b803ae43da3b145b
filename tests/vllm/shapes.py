"""Small models of many families, with random weights, and what vLLM makes of them.

`measured` runs in a process of its own, since vLLM keeps its state in the process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from packaging.version import Version

from rayllm.config.vllm_versions import current_series
from rayllm.engine.vllm.engine import inspected_in_process

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
CACHE_GIB = 1
TOKENS = 256
_BASE = {
    "vocab_size": 3072,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}
_LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "head_dim": 32,
}
_CLASSES = {"Gemma3Text": "Gemma3"}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen-tied": ("Qwen2", {"tie_word_embeddings": True, "num_hidden_layers": 5}),
    "gemma-sliding": ("Gemma2", {"sliding_window": 64, "query_pre_attn_scalar": 32}),
    "gemma-one-in-six": ("Gemma3Text", {"sliding_window": 64, "num_hidden_layers": 7, "query_pre_attn_scalar": 32}),
    "mixture": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "latent": ("DeepseekV2", _LATENT),
}


# The CPU builds before 0.29 have no latent attention.
RUNNABLE = [name for name in SHAPES if name != "latent" or Version(current_series()) >= Version("0.29")]


def make(root: Path) -> dict[str, int]:
    """A folder below `root` for each shape; gives their numbers of parameters."""
    import torch
    import transformers

    parameters = {}
    for name, (family, changes) in SHAPES.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**{**_BASE, **changes})
        model = getattr(transformers, f"{_CLASSES.get(family, family)}ForCausalLM")
        made = model(config).to(torch.bfloat16)
        made.save_pretrained(root / name)
        parameters[name] = made.num_parameters()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(WEIGHTS / file, root / name / file)
    return parameters


def count(root: Path) -> dict[str, dict[str, float]]:
    """What vLLM makes of each, with the same room for its cache; `sequences` are those of TOKENS that fit at once."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB)}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    found = {}
    for name in RUNNABLE:
        with inspected_in_process():
            engine = LLM(
                model=str(root / name),
                enforce_eager=True,
                max_model_len=TOKENS,
                max_num_batched_tokens=TOKENS,
                distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
            )
        config = engine.llm_engine.vllm_config
        caches = engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
        found[name] = {
            "blocks": config.cache_config.num_gpu_blocks,
            "block": config.cache_config.block_size,
            "sequences": get_max_concurrency_for_kv_cache_config(config, caches),
        }
        del engine
        cleanup_dist_env_and_memory()
    return found


def measured(root: Path) -> dict[str, dict[str, float]]:
    """What vLLM makes of each model, and transformers of its `parameters`. Makes the models below `root`."""
    parameters = make(root)
    return {name: {**counts, "parameters": parameters[name]} for name, counts in count(root).items()}
