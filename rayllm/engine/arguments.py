"""Translates a model's configuration to vLLM's arguments, without importing vLLM."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rayllm.config import ModelConfig
from rayllm.config.engine_arguments import vllm_names
from rayllm.core.errors import ConfigError
from rayllm.plan.fit import default_utilization

_RUNNER = {
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    # The architecture decides how a model scores or classifies.
    "score": {"runner": "pooling"},
    "classify": {"runner": "pooling"},
}


# vLLM's default, `auto`, keeps the backend of the first request, which may silently ignore a later constraint. It also
# allows unlimited white space in JSON, which small models generate until they reach the limit of tokens.
STRUCTURED_OUTPUTS = {"backend": "guidance", "disable_any_whitespace": True}
# vLLM's other backends drop what they do not enforce.
_BACKENDS = ("guidance", "xgrammar")
# "No host" for vLLM's list of media hosts (RFC 2606).
NO_HOST = "none.invalid"
_LORA_WORKER = "rayllm.engine.vllm.lora_worker.LoraWorker"
_CPU_LORA_WORKER = "rayllm.engine.vllm.cpu_lora_patches.CpuLoraWorker"


# Value of `load_format` or connector of the KV cache, by its beginning → the module that it needs, and what has that.
_OPTIONAL_PACKAGES = {
    "runai_streamer": ("runai_model_streamer", "`rayllm[streamer]`"),
    "tensorizer": ("tensorizer", "`tensorizer`"),
    "LMCache": ("lmcache", "`rayllm[kv]`"),
    "Nixl": ("nixl", "`rayllm[kv]`"),
}
Workers = Literal["cpu", "gpu", "ray"]
"""Where an engine's workers run: on CPUs or GPUs of its own node, or where Ray has placed them."""


@dataclass(frozen=True)
class VllmArguments:
    """Arguments of vLLM's engine and of its OpenAI server, by name."""

    engine: dict[str, Any]
    server: dict[str, Any]


def vllm_arguments(
    model: ModelConfig,
    weights: str,
    tokenizer: Path | None,
    names: tuple[str, ...],
    workers: Workers,
    processors: tuple[str, ...] = (),
) -> VllmArguments:
    """The arguments for one replica.

    Args:
        weights: a local folder, or an address that vLLM streams the weights from.
        tokenizer: the tokenizer's folder; None if it is `weights`.
        names: the model's id, then its aliases.
        workers: where the engine's workers run.
        processors: class paths of RayLLM's logits processors.

    Raises:
        ConfigError: two keys of the model exclude each other.
    """
    # Usage says how much of the prompt was cached, as in OpenAI's and Anthropic's.
    values: dict[str, Any] = {"enable_prompt_tokens_details": True, **model.engine_kwargs}
    values |= {"model": weights, "served_model_name": list(names)}
    if tokenizer:
        values["tokenizer"] = str(tokenizer)
    if model.max_model_len:
        values["max_model_len"] = model.max_model_len
    if model.task:
        values = {**_RUNNER[model.task], **values}
    values |= _memory(model, workers)
    values |= {
        "tensor_parallel_size": model.tensor_parallel_size,
        "pipeline_parallel_size": model.pipeline_parallel_size,
        "distributed_executor_backend": _executor(model, workers),
    }
    values = {**_adapters(model, workers), **values}
    values |= _conversation(model)
    if processors:
        values["logits_processors"] = _logits_processors(values, processors)
    if not values.get("allowed_media_domains"):
        # To vLLM an empty list means every host.
        values["allowed_media_domains"] = [NO_HOST]
    values |= _structured_outputs(values)
    engine = {name: value for name, value in values.items() if name in vllm_names()["engine"]}
    return VllmArguments(engine, {name: value for name, value in values.items() if name not in engine})


def _memory(model: ModelConfig, workers: Workers) -> dict[str, Any]:
    """The share of the GPU's memory, if the engine has a share of a GPU: vLLM's default is for a whole GPU."""
    if workers == "cpu" or model.gpu_share == 1 or model.engine_kwargs.get("gpu_memory_utilization") is not None:
        return {}
    return {"gpu_memory_utilization": default_utilization(model.gpu_share)}


def _executor(model: ModelConfig, workers: Workers) -> str:
    """The executor that `vllm serve` would take. In a placement group, vLLM itself would take Ray's, also on one node.

    Workers on CPUs have a process each, since threads are bound at process start. A single worker that binds no threads
    runs in the engine's process: it starts sooner and takes less memory.
    """
    if workers == "ray":
        return "ray"
    if model.tensor_parallel_size * model.pipeline_parallel_size > 1:
        return "mp"
    if workers == "gpu":
        return "uni"
    # vLLM would replace the short name "uni".
    binds = os.environ.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind"
    return "mp" if binds else "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def _adapters(model: ModelConfig, workers: Workers) -> dict[str, Any]:
    if model.lora_config is None:
        return {}
    if "worker_extension_cls" in model.engine_kwargs:
        raise ConfigError(
            "engine_kwargs.worker_extension_cls: with a lora_config, RayLLM sets this key to a class that checks "
            "adapters; remove `worker_extension_cls` or the lora_config."
        )
    extension = _CPU_LORA_WORKER if workers == "cpu" else _LORA_WORKER
    most = model.lora_config.max_num_adapters_per_replica
    return {"enable_lora": True, "max_loras": most, "max_cpu_loras": most, "worker_extension_cls": extension}


def _conversation(model: ModelConfig) -> dict[str, Any]:
    """How messages become a prompt, and generated text becomes tool calls and reasoning."""
    values: dict[str, Any] = {}
    if model.chat_template_kwargs:
        values["default_chat_template_kwargs"] = model.chat_template_kwargs
    if model.reasoning_parser:
        values["reasoning_parser"] = model.reasoning_parser
    if tools := model.tool_calling:
        values |= {"tool_call_parser": tools.parser, "enable_auto_tool_choice": tools.auto}
        if tools.plugin:
            values["tool_parser_plugin"] = tools.plugin
    return values


def _logits_processors(values: dict[str, Any], ours: tuple[str, ...]) -> list[str]:
    if values.get("speculative_config"):
        raise ConfigError(
            "guided_decoding: vLLM runs no logits processors with `engine_kwargs.speculative_config`; remove one."
        )
    return [*(values.get("logits_processors") or ()), *ours]


def _structured_outputs(values: dict[str, Any]) -> dict[str, Any]:
    config = values.get("structured_outputs_config") or {}
    if not isinstance(config, dict):
        return {}
    chosen = {
        **STRUCTURED_OUTPUTS,
        **{name: value for name, value in config.items() if (name, value) != ("backend", "auto")},
    }
    if chosen["backend"] not in _BACKENDS:
        raise ConfigError(
            f"engine_kwargs.structured_outputs_config.backend: `{chosen['backend']}` does not enforce all that it "
            f"accepts; use {' or '.join(_BACKENDS)}, or leave it out."
        )
    return {"structured_outputs_config": chosen}


def check_optional_packages(model: ModelConfig) -> None:
    """Refuse a model whose `engine_kwargs` need a package that is not installed, before its weights are fetched."""
    connector = str((model.engine_kwargs.get("kv_transfer_config") or {}).get("kv_connector"))
    named = [str(model.engine_kwargs.get("load_format")), connector]
    for prefix, (module, install) in _OPTIONAL_PACKAGES.items():
        if any(name.startswith(prefix) for name in named) and find_spec(module) is None:
            raise ConfigError(f"model `{model.model_id}`: engine_kwargs need a package: install {install}.")
