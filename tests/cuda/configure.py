"""Prints vLLM's configuration for model files, each on its own GPU, as a replica makes it: JSON, a line for each model.

The arguments are the files' stems, `STEM@GPU` for another GPU than the file's, and `STEM@GPU+guided` for a guided
decoding backend.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from rayllm.config import load_model
from rayllm.engine.arguments import vllm_arguments
from rayllm.engine.guided import PROCESSOR
from rayllm.engine.vllm.environment import prepare_environment
from tests.cuda.cards import CARDS
from tests.cuda.driver import insert

ROOT = Path(__file__).parents[2]
CONFIGS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/vllm/shipped_configs.json").read_text())
# What each process would otherwise import again.
_SLOW_IMPORTS = (
    *("vllm.v1.engine.async_llm", "vllm.model_executor.models.qwen3_5", "vllm.model_executor.models.nemotron_h"),
    *("vllm.model_executor.models.deepseek_v2", "tests.vllm.test_shipped_parsers"),
)
# Of the image processors that have no defaults.
_IMAGES = {
    "media_proc_cfg": {
        "merge_kernel_size": 2,
        "patch_size": 14,
        "temporal_merge_kernel_size": 4,
        "in_patch_limit": 16384,
        "patch_limit_on_one_side": 512,
        "fixed_output_tokens": None,
        "in_patch_limit_each_frame": None,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
}


def write_model(folder: Path, stem: str, is_mistral: bool) -> None:
    """Write what a checkpoint has beside its weights, as far as vLLM's configuration reads it."""
    from tests.vllm.test_mistral_format import params_of
    from tests.vllm.test_shipped_parsers import tokenizer

    if is_mistral:
        (folder / "params.json").write_text(json.dumps(params_of(stem)))
        (folder / "tekken.json").write_text(json.dumps(tekken()))
        (folder / "consolidated.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    else:
        (folder / "config.json").write_text(json.dumps(CONFIGS[stem]))
        (folder / "preprocessor_config.json").write_text(json.dumps(_IMAGES))
    tokenizer().save_pretrained(folder)


def tekken() -> dict[str, Any]:
    """A tokenizer of Mistral's whose words are single bytes."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    special = [{"rank": rank, "token_str": each.value, "is_control": True} for rank, each in enumerate(SpecialTokens)]
    words = [{"rank": byte, "token_bytes": b64encode(bytes([byte])).decode(), "token_str": ""} for byte in range(256)]
    size = {"num_vocab_tokens": 256, "default_vocab_size": 256 + 100, "default_num_special_tokens": 100}
    return {"config": {"pattern": ".", "version": "v13", **size}, "vocab": words, "special_tokens": special}


def configure(named: str, folder: Path) -> dict[str, Any]:
    """What vLLM makes of a model file."""
    from vllm.envs import environment_variables
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    from rayllm.engine.vllm.engine import choose_runner, make_engine_config

    stem, _, gpu = named.partition("@")
    gpu, _, guided = gpu.partition("+")
    model = load_model(ROOT / "models" / f"{stem}.yaml")
    cards = folder / "cards.json"
    os.environ |= {"FAKE_DRIVER": str(cards), **model.runtime_env.get("env_vars", {})}
    insert(cards, CARDS[gpu or model.accelerator_type or "A10G"], count=8)
    current_platform.get_device_capability.cache_clear()
    # A process of its own for each class of models would take ten seconds.
    registry._run_in_subprocess = lambda function: function()
    write_model(folder, stem, model.engine_kwargs.get("load_format") == "mistral")
    processors = (PROCESSOR,) if guided else ()
    arguments = vllm_arguments(model, str(folder), None, (model.model_id,), "gpu", processors)
    choose_runner(arguments)
    try:
        config = make_engine_config(arguments)
    except Exception as error:
        return {"refused": str(error)}
    return {
        "second_runner": config.use_v2_model_runner,
        "executor": config.parallel_config.distributed_executor_backend,
        "async": config.scheduler_config.async_scheduling,
        "quantization": config.model_config.quantization,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "length": config.model_config.max_model_len,
        "unknown_variables": [
            name for name in os.environ if name.startswith("VLLM_") and name not in environment_variables
        ],
    }


def outcome(named: str) -> str:
    """The same, as a line."""
    with tempfile.TemporaryDirectory() as folder:
        return json.dumps({"model": named, **configure(named, Path(folder))})


def main(stems: list[str]) -> None:
    prepare_environment(0, gpu_share=1)
    for name in _SLOW_IMPORTS:
        importlib.import_module(name)
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for line in pool.imap(outcome, stems):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
