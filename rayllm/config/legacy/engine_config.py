"""Model files of the first generation: `engine_config`, `scaling_config` and `multiplex_config`."""

from __future__ import annotations

import re

from rayllm.config.legacy.changes import Changes
from rayllm.config.legacy.nested import Mapping, at

CPU_BUILD = "vLLM's CPU build serves on the CPU, any other on GPUs"
# Key of `engine_config` → current path. Of several keys for one path, the first wins.
_PATHS = {
    "model_id": ("model_loading_config", "model_id"),
    "s3_mirror_config": ("model_loading_config", "model_source"),
    "gcs_mirror_config": ("model_loading_config", "model_source"),
    "hf_model_id": ("model_loading_config", "model_source"),
    "tokenizer_id": ("model_loading_config", "tokenizer_source"),
    "type": ("llm_engine",),
    "engine_kwargs": ("engine_kwargs",),
    "generation": ("generation_config",),
    "runtime_env": ("runtime_env",),
    "max_total_tokens": ("max_request_context_length",),
}
_MEANINGLESS = "it has no meaning any more"
_REMOVED = {
    "model_type": _MEANINGLESS,
    "model_url": _MEANINGLESS,
    "model_description": _MEANINGLESS,
    "max_batch_size": "vLLM batches what comes by itself",
    "batch_wait_timeout_s": "vLLM batches what comes by itself",
    "optimize": "vLLM runs the model",
}


def from_engine_config(old: Mapping, changes: Changes) -> Mapping:
    """Rewrite a file with `engine_config`, `scaling_config` and `multiplex_config` to the current shape."""
    engine, scaling = dict(old.pop("engine_config")), at(old.pop("scaling_config", None))
    config: Mapping = {key: old.pop(key) for key in ("deployment_config", "enabled") if key in old}
    config["model_loading_config"] = {}
    if engine.get("type") == "EmbeddingEngine":
        config["task"] = "embed"
        del engine["type"]
        changes.renamed("engine_config.type", "task")
    elif engine.get("type") == "VLLMEngine":
        engine["type"] = "vLLM"
    for key, path in _PATHS.items():
        _move(engine, key, config, path, changes)
    for key, why in _REMOVED.items():
        changes.drop_from(engine, key, why, "engine_config.")
    _propagated_variables(engine, config, changes)
    _scaling(scaling, config, changes)
    multiplex = at(old.pop("multiplex_config", None))
    if "max_num_models_per_replica" in multiplex:
        config["lora_config"] = {"max_num_adapters_per_replica": multiplex.pop("max_num_models_per_replica")}
        key = "lora_config.max_num_adapters_per_replica"
        changes.renamed("multiplex_config.max_num_models_per_replica", key)
    # Keep unknown keys under their own names, so that the schema refuses them.
    config |= old
    for key, rest in (("engine_config", engine), ("scaling_config", scaling), ("multiplex_config", multiplex)):
        config |= {f"{key}.{name}": value for name, value in rest.items()}
    return config


def _move(engine: Mapping, key: str, config: Mapping, path: tuple[str, ...], changes: Changes) -> None:
    value = engine.pop(key, None)
    if value is None:
        return
    holder, old = config if len(path) == 1 else config[path[0]], f"engine_config.{key}"
    if isinstance(value, dict) and value.get("bucket_uri", "") is None:
        changes.dropped(old, "it names no bucket")
    elif path[-1] in holder:
        changes.dropped(old, "the weights come from a mirror")
    else:
        holder[path[-1]] = value
        changes.renamed(old, ".".join(path))


def _propagated_variables(engine: Mapping, config: Mapping, changes: Changes) -> None:
    """Turn names of variables of the deploying process into references."""
    names = engine.get("env_vars_to_propogate") or []
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        engine.pop("env_vars_to_propogate", None)
        if names:
            environment = config["runtime_env"] = at(config, "runtime_env")
            references = {name: f"${{env:{name}}}" for name in names}
            environment["env_vars"] = references | at(environment, "env_vars")
            new = tuple(f"runtime_env.env_vars.{name}" for name in names)
            changes.renamed("engine_config.env_vars_to_propogate", *new)


def _scaling(scaling: Mapping, config: Mapping, changes: Changes) -> None:
    where = "scaling_config."
    # Engines without a group of workers have 0.
    if workers := scaling.pop("num_workers", None):
        config["tensor_parallelism"] = {"degree": workers}
        changes.renamed(f"{where}num_workers", "tensor_parallelism.degree")
    for key in ("num_cpus_per_worker", "pg_timeout_s"):
        changes.drop_from(scaling, key, _MEANINGLESS, where)
    per_worker = at(scaling.pop("resources_per_worker", None))
    _accelerator(per_worker, f"{where}resources_per_worker", config, changes)
    _accelerator(
        at(config, "deployment_config", "ray_actor_options", "resources"),
        "deployment_config.ray_actor_options.resources",
        config,
        changes,
    )
    gpus = scaling.pop("num_gpus_per_worker", 1)
    if not gpus:
        changes.dropped(f"{where}num_gpus_per_worker", CPU_BUILD)
    if gpus not in (0, 1) or per_worker:
        worker = config["placement_group_config"] = {"bundle_per_worker": {"GPU": gpus, **per_worker}}
        names = ["num_gpus_per_worker"] if gpus != 1 else []
        for name in (*names, *(f"resources_per_worker.{resource}" for resource in per_worker)):
            changes.renamed(f"{where}{name}", "placement_group_config.bundle_per_worker")
        if strategy := scaling.pop("placement_strategy", None):
            worker["strategy"] = strategy
            changes.renamed(f"{where}placement_strategy", "placement_group_config.strategy")
    changes.drop_from(scaling, "placement_strategy", "RayLLM packs the workers of a replica itself", where)


def _accelerator(resources: Mapping, where: str, config: Mapping, changes: Changes) -> None:
    """Turn a custom resource like `accelerator_type_a10` or `accelerator_type_a100_80g_aws` into `accelerator_type`."""
    for name in list(resources):
        match = re.fullmatch(r"accelerator_type[:_](.+?)(?:_(?:aws|gcp|gce|azure))?", name)
        if not match:
            continue
        del resources[name]
        if match[1].lower() == "cpu":
            changes.dropped(f"{where}.{name}", CPU_BUILD)
        else:
            config.setdefault("accelerator_type", match[1].upper().replace("_", "-"))
            changes.renamed(f"{where}.{name}", "accelerator_type")
