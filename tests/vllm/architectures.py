"""Tiny checkpoints of the architectures of 2025 and 2026 that vLLM's CPU build runs, with random weights.

`answers` runs in a process of its own, since vLLM keeps its state in the process; `python -m tests.vllm.architectures
FOLDER` is one, and prints them as JSON. Where there is a GPU, vLLM computes on it; what that is compared with is always
computed by transformers on the CPU.

Not here, because vLLM 0.29 refuses them on a CPU: sparse attention (DeepSeek V3.2 and V4, GLM 5), MXFP4 weights,
experts chosen by a sigmoid without groups (MiniMax M2), experts without a gate (those of Nemotron 3) and Kimi's linear
attention. Nor those whose module asks for torchvision: Qwen 3.5, whose text part is like Qwen3-Next's, and Kimi K2.5,
whose is DeepSeek V3's.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from rayllm.engine.vllm.engine import inspected_in_process

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
TOKENS = 12
# More tokens than the windows and chunks below, and none twice in a row.
PROMPT = [100 + (37 * position) % 1900 for position in range(160)]
# Of bfloat16 against float32, see `disagreement`: up to 0.05 on a CPU, most where routers choose other experts.
MAX_DISAGREEMENT = 0.15
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
    _make(name, folder)
    return folder


def _make(name: str, folder: Path) -> Any:
    """Make a checkpoint; returns transformers' model, with weights in bfloat16."""
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
    return model


def _expected_logprobs(model: Any) -> list[float]:
    """Log-probabilities of PROMPT's tokens but the first, computed by transformers in float32."""
    import torch

    with torch.no_grad():
        logits = model.float().eval()(torch.tensor([PROMPT])).logits[0, :-1]
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(PROMPT[1:])[:, None])
    return [float(value) for value in chosen[:, 0]]


def answers(root: Path) -> dict[str, dict[str, Any]]:
    """What an engine for each of `SHAPES` answers. Makes the checkpoints below `root`.

    Returns:
        By name: `tokens`, the numbers of tokens in the answers to two prompts; `logprobs`, those of PROMPT's tokens;
        and `expected`, the same by transformers. Or `error`, where vLLM cannot run it here.
    """
    prepare_environment()
    from vllm import SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0)
    scoring = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)

    def answer(name: str) -> dict[str, Any]:
        expected = _expected_logprobs(_make(name, root / name))
        engine = start_engine(root / name)
        prompts = ["The capital of France is", "Tell me a story."]
        replies = engine.generate(prompts, sampling, use_tqdm=False)
        [scored] = engine.generate([{"prompt_token_ids": PROMPT}], scoring, use_tqdm=False)
        pairs = zip(PROMPT[1:], scored.prompt_logprobs[1:], strict=True)
        return {
            "tokens": [len(reply.outputs[0].token_ids) for reply in replies],
            "logprobs": [logprobs[token].logprob for token, logprobs in pairs],
            "expected": expected,
        }

    found: dict[str, dict[str, Any]] = {}
    for name in SHAPES:
        try:
            found[name] = answer(name)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        cleanup_dist_env_and_memory()
    return found


def prepare_environment() -> None:
    """For engines in this process; before vLLM is imported."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}


def start_engine(folder: Path, **changes: Any) -> Any:
    """An engine in this process."""
    from vllm import LLM

    with inspected_in_process():
        return LLM(
            model=str(folder),
            enforce_eager=True,
            max_model_len=256,
            max_num_batched_tokens=256,
            gpu_memory_utilization=0.3,
            # Mamba-2 layers have none on a CPU.
            enable_prefix_caching=False,
            distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
            **changes,
        )


def disagreement(logprobs: list[float], expected: list[float]) -> float:
    """Root mean square of the differences, in units of the standard deviation of what is expected."""
    squares = [(a - b) ** 2 for a, b in zip(logprobs, expected, strict=True)]
    return math.sqrt(statistics.mean(squares)) / statistics.pstdev(expected)


if __name__ == "__main__":
    print(json.dumps(answers(Path(sys.argv[1]))))
