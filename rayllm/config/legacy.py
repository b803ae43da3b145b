"""Old spellings of model files, rewritten to today's before the schema sees them.

Two older generations of RayLLM files exist: `engine_config` / `scaling_config` files, and early files of today's shape
whose keys have since been renamed. Each rewriting adds a warning that names the new key.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

Mapping = dict[str, Any]

# Engine arguments of older vLLM releases that have no successor: what they did is gone or is always on.
GONE_ENGINE_ARGUMENTS = {
    "tokenizer_pool_size": "vLLM no longer pools tokenizers",
    "tokenizer_pool_extra_config": "vLLM no longer pools tokenizers",
    "num_tokenizer_actors": "vLLM no longer pools tokenizers",
    "enable_cuda_graph": "CUDA graphs are on unless engine_kwargs.enforce_eager is true",
    "enable_json_logits_processors": "structured output is always available",
    "long_lora_scaling_factors": "vLLM no longer supports long-context adapters",
    "worker_use_ray": "RayLLM chooses the executor",
    "disable_log_requests": "use engine_kwargs.enable_log_requests",
}


def upgrade(raw: Mapping) -> tuple[Mapping, list[str]]:
    """Today's spelling of `raw`, and a warning for each thing that was rewritten or dropped. `raw` is left as it is."""
    config, warnings = deepcopy(raw), list[str]()
    if isinstance(config.get("engine_config"), dict):
        config = _from_engine_config(config, warnings)
    _rename(config, "generation", "generation_config", warnings)
    _drop_described(config, warnings)
    _generation(config, warnings)
    _deployment(config.get("deployment_config"), warnings)
    _engine_kwargs(config.get("engine_kwargs"), warnings)
    for key in ("lora_config", "runtime_env", "generation_config", "engine_kwargs", "deployment_config"):
        if key in config and config[key] is None:
            del config[key]
    return config, warnings


def _rename(config: Mapping, old: str, new: str, warnings: list[str], where: str = "") -> None:
    if old in config and new not in config:
        config[new] = config.pop(old)
        warnings.append(f"`{where}{old}` is now `{where}{new}`")


def _drop_described(config: Mapping, warnings: list[str]) -> None:
    if "input_modality" in config:
        del config["input_modality"]
        warnings.append("`input_modality` is ignored: the model's own config.json says whether it takes images")
    if "json_mode" in config:
        del config["json_mode"]
        warnings.append("`json_mode` is ignored: `response_format` and `structured_outputs` always work")
    if "enabled" in config:
        del config["enabled"]
        warnings.append("`enabled` is ignored: list the models you want in the serve config")


def _generation(config: Mapping, warnings: list[str]) -> None:
    """Put `prompt_format` and the stops that stand inside it where they belong."""
    generation = config.get("generation_config") or {}
    if not isinstance(generation, dict):
        return
    if "prompt_format" in config:
        generation.setdefault("prompt_format", config.pop("prompt_format"))
    if generation:
        config["generation_config"] = generation
    prompt_format = generation.get("prompt_format")
    if not isinstance(prompt_format, dict):
        return
    for key in ("stopping_sequences", "stopping_tokens"):
        if key in prompt_format:
            inside, beside = prompt_format.pop(key) or [], generation.get(key) or []
            both_are_lists = isinstance(inside, list) and isinstance(beside, list)
            generation[key] = list(dict.fromkeys([*beside, *inside])) if both_are_lists else (beside or inside)
    _rename(prompt_format, "use_hf_chat_templates", "use_hugging_face_chat_template", warnings, "prompt_format.")
    if prompt_format == {"use_hugging_face_chat_template": True}:
        generation["prompt_format"] = None
    elif "vision" in prompt_format:
        generation["prompt_format"] = None
        warnings.append("`prompt_format.vision` is ignored: a vision model's own chat template places the images")
    for key in ("stopping_sequences", "stopping_tokens"):
        if generation.get(key, ()) is None:
            del generation[key]


def _deployment(deployment: Any, warnings: list[str]) -> None:
    if not isinstance(deployment, dict):
        return
    _rename(deployment, "max_concurrent_queries", "max_ongoing_requests", warnings, "deployment_config.")
    autoscaling = deployment.get("autoscaling_config")
    if isinstance(autoscaling, dict):
        where = "deployment_config.autoscaling_config."
        old = "target_num_ongoing_requests_per_replica"
        _rename(autoscaling, old, "target_ongoing_requests", warnings, where)
        _rename(autoscaling, "upscale_smoothing_factor", "upscaling_factor", warnings, where)
        _rename(autoscaling, "downscale_smoothing_factor", "downscaling_factor", warnings, where)
        if "smoothing_factor" in autoscaling:
            factor = autoscaling.pop("smoothing_factor")
            autoscaling.setdefault("upscaling_factor", factor)
            autoscaling.setdefault("downscaling_factor", factor)
            warnings.append(f"`{where}smoothing_factor` is now `upscaling_factor` and `downscaling_factor`")


def _engine_kwargs(engine_kwargs: Any, warnings: list[str]) -> None:
    if not isinstance(engine_kwargs, dict):
        return
    for name, why in GONE_ENGINE_ARGUMENTS.items():
        if name in engine_kwargs:
            del engine_kwargs[name]
            warnings.append(f"`engine_kwargs.{name}` is ignored: {why}")
    _rename(engine_kwargs, "override_pooler_config", "pooler_config", warnings, "engine_kwargs.")
    if "guided_decoding_backend" in engine_kwargs:
        backend = engine_kwargs.pop("guided_decoding_backend")
        engine_kwargs["structured_outputs_config"] = {
            "backend": backend,
            **(engine_kwargs.get("structured_outputs_config") or {}),
        }
        warnings.append(
            "`engine_kwargs.guided_decoding_backend` is now `engine_kwargs.structured_outputs_config.backend`"
        )


def _from_engine_config(old: Mapping, warnings: list[str]) -> Mapping:
    """Today's shape of a file with `engine_config`, `scaling_config` and `multiplex_config`."""
    warnings.append(
        "`engine_config` and `scaling_config` are an old shape; write `model_loading_config` and its siblings"
    )
    engine, scaling = dict(old.pop("engine_config")), _mapping(old.pop("scaling_config", None))
    config: Mapping = {key: old.pop(key) for key in ("deployment_config", "enabled") if key in old}
    config["model_loading_config"] = _loading(engine)
    config["llm_engine"] = engine.pop("type", "VLLMEngine")
    moved = {"engine_kwargs": "engine_kwargs", "generation": "generation_config", "runtime_env": "runtime_env"}
    moved["max_total_tokens"] = "max_request_context_length"
    config |= {new: engine.pop(key) for key, new in moved.items() if engine.get(key) is not None}
    _dropped(
        engine, "engine_config", ("model_type", "model_url", "model_description", "env_vars_to_propogate"), warnings
    )
    _scaling(scaling, config, warnings)
    multiplex = _mapping(old.pop("multiplex_config", None))
    if "max_num_models_per_replica" in multiplex:
        config["lora_config"] = {"max_num_adapters_per_replica": multiplex.pop("max_num_models_per_replica")}
    # What is left over is unknown: hand it on under its own name, so that the schema refuses it.
    config |= old
    for key, rest in (("engine_config", engine), ("scaling_config", scaling), ("multiplex_config", multiplex)):
        config |= {f"{key}.{name}": value for name, value in rest.items()}
    return config


def _mapping(value: Any) -> Mapping:
    return dict(value) if isinstance(value, dict) else {}


def _loading(engine: Mapping) -> Mapping:
    loading = {"model_id": engine.pop("model_id", None)}
    source = (
        engine.pop("s3_mirror_config", None) or engine.pop("gcs_mirror_config", None) or engine.pop("hf_model_id", None)
    )
    for name in ("s3_mirror_config", "gcs_mirror_config", "hf_model_id"):
        engine.pop(name, None)
    if source:
        loading["model_source"] = source
    if tokenizer := engine.pop("tokenizer_id", None):
        loading["tokenizer_source"] = tokenizer
    return loading


def _scaling(scaling: Mapping, config: Mapping, warnings: list[str]) -> None:
    if "num_workers" in scaling:
        config["tensor_parallelism"] = {"degree": scaling.pop("num_workers")}
    gpus = scaling.pop("num_gpus_per_worker", 1)
    strategy = scaling.pop("placement_strategy", None)
    if gpus != 1:
        config["placement_group_config"] = {"bundle_per_worker": {"GPU": gpus}}
        if strategy:
            config["placement_group_config"]["strategy"] = strategy
    elif strategy:
        warnings.append("`scaling_config.placement_strategy` is ignored: RayLLM packs the workers of a replica itself")
    for resources in (scaling.pop("resources_per_worker", None) or {}, _actor_resources(config)):
        for name in list(resources):
            if found := re.fullmatch(r"accelerator_type[:_](.+)", name):
                config.setdefault("accelerator_type", found[1].upper())
                resources.pop(name)
    _dropped(scaling, "scaling_config", ("num_cpus_per_worker", "pg_timeout_s"), warnings)


def _actor_resources(config: Mapping) -> Mapping:
    options = (config.get("deployment_config") or {}).get("ray_actor_options") or {}
    resources = options.get("resources")
    return resources if isinstance(resources, dict) else {}


def _dropped(mapping: Mapping, where: str, names: tuple[str, ...], warnings: list[str]) -> None:
    for name in names:
        if name in mapping:
            del mapping[name]
            warnings.append(f"`{where}.{name}` is ignored: it has no meaning any more")
