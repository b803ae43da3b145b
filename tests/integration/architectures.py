"""Tiny checkpoints of the architectures of 2025 and 2026 that vLLM's CPU build runs, with random weights.

`python -m tests.integration.architectures FOLDER` makes one of each below FOLDER, has vLLM answer with each, and prints
the numbers of tokens as JSON. It is a program of its own, since vLLM keeps its state in the process.

Not here, because vLLM 0.29 refuses them on a CPU: sparse attention (DeepSeek V3.2 and V4, GLM 5), MXFP4 weights,
experts chosen by a sigmoid without groups (MiniMax M2), experts without a gate (those of Nemotron 3) and Kimi's linear
attention. Nor those whose module asks for torchvision: Qwen 3.5, whose text part is like Qwen3-Next's, and Kimi K2.5,
whose is DeepSeek V3's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
TOKENS = 12
# Texts that parsers and rerankers look for as single tokens.
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "yes", "no")
_BASE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_GROUPS = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
# vLLM's CPU kernels know one size of latent attention, 512 + 64, and heads of delta nets from 64 on.
_LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "topk_method": "noaux_tc",
}
_SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-oss": ("GptOss", {**_SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma-4": ("Gemma4Text", {**_SLIDING, "global_head_dim": 32, "hidden_size_per_layer_input": 0}),
    "qwen3-next": (
        "Qwen3Next",
        {
            **_EXPERTS,
            "num_experts": 4,
            "shared_expert_intermediate_size": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "nemotron-3": (
        "NemotronH",
        {
            "layers_block_type": ["mamba", "attention", "mlp"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 1,
            "conv_kernel": 4,
            "chunk_size": 16,
        },
    ),
    "deepseek-v3": ("DeepseekV3", {**_EXPERTS, **_GROUPS, **_LATENT}),
    "glm-4.7": ("Glm4Moe", {**_EXPERTS, **_GROUPS, "use_qk_norm": True}),
    "glm-4.7-flash": ("Glm4MoeLite", {**_EXPERTS, **_GROUPS, **_LATENT}),
    "llama-4": (
        "Llama4Text",
        {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 256, "attention_chunk_size": 128},
    ),
    "ministral-3": ("Ministral3", {}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
}


def make(name: str, folder: Path) -> Path:
    """Make a checkpoint of one of `SHAPES`; returns its folder."""
    import torch
    import transformers

    family, changes = SHAPES[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(WEIGHTS)
    tokenizer.add_tokens(list(MARKS))
    size = -(-len(tokenizer) // 64) * 64
    ends = {
        "vocab_size": size,
        "vocab_size_per_layer_input": size,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**_BASE, **ends, **changes})
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def answers(root: Path) -> dict[str, list[int]]:
    """Tokens in the answers to two prompts, of an engine for each model below `root`."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0)
    found = {}
    for name in SHAPES:
        engine = LLM(
            model=str(make(name, root / name)),
            enforce_eager=True,
            max_model_len=256,
            max_num_batched_tokens=256,
            distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
        )
        prompts = ["The capital of France is", "Tell me a story."]
        replies = engine.generate(prompts, sampling, use_tqdm=False)
        found[name] = [len(reply.outputs[0].token_ids) for reply in replies]
        del engine
        cleanup_dist_env_and_memory()
    return found


if __name__ == "__main__":
    print(json.dumps(answers(Path(sys.argv[1]))))
