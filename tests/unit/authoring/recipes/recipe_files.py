"""Recipes in the format of vllm-project/recipes, written for these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def recipe(**changes: Any) -> dict[str, Any]:
    """A recipe for a mixture of experts with weights of three precisions, and some of its keys changed."""
    keys: dict[str, Any] = {
        "meta": {
            "title": "Heron 90B",
            "slug": "heron-90b",
            "provider": "Example",
            "description": "A model that does not exist.",
            "date_added": "2026-03-01",
            "date_updated": "2026-03-02",
            "difficulty": "beginner",
            "tasks": ["text"],
            "hardware": {"h100": "verified"},
        },
        "model": {
            "model_id": "example/Heron-90B",
            "min_vllm_version": "0.17.0",
            "architecture": "moe",
            "parameter_count": "90B",
            "active_parameters": "4B",
            "context_length": 262144,
            "base_args": ["--trust-remote-code", "--max-num-seqs", 64],
            "base_env": {"VLLM_USE_DEEP_GEMM": 0},
        },
        "features": {
            "tool_calling": {
                "description": "Tools",
                "args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
            },
            "reasoning": {"description": "Thoughts", "args": ["--reasoning-parser", "qwen3"]},
            "spec_decoding": {
                "description": "Drafts",
                "default_mode": "mtp",
                "modes": {
                    "mtp": {"args": ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']},
                    "eagle3": {
                        "args": ["--speculative-config", '{"method":"eagle3","model":"example/Heron-EAGLE3"}'],
                        "hardware": {"hopper": "unsupported"},
                    },
                },
            },
        },
        "opt_in_features": ["spec_decoding"],
        "variants": {
            "default": {"precision": "bf16", "vram_minimum_gb": 216, "description": "bfloat16"},
            "fp8": {
                "model_id": "example/Heron-90B-FP8",
                "precision": "fp8",
                "vram_minimum_gb": 108,
                "hardware_overrides": {"hopper": {"extra_args": ["--block-size", "64"]}},
            },
            "nvfp4": {
                "model_id": "example/Heron-90B-NVFP4",
                "precision": "nvfp4",
                "vram_minimum_gb": 54,
                "extra_args": ["--kv-cache-dtype", "fp8"],
            },
        },
        "compatible_strategies": ["single_node_tp", "single_node_tep", "single_node_dep"],
        "hardware_overrides": {"blackwell": {"extra_env": {"VLLM_USE_FLASHINFER_MOE_FP8": "1"}}},
        "strategy_overrides": {},
        "guide": "## Overview\n",
    }
    return keys | changes


def written(folder: Path, **changes: Any) -> Path:
    """A file with such a recipe."""
    path = folder / "Heron-90B.yaml"
    path.write_text(yaml.safe_dump(recipe(**changes), sort_keys=False))
    return path
