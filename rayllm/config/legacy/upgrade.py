"""Old spellings of model files, rewritten to today's before the schema sees them.

Two older generations of RayLLM files exist: `engine_config` / `scaling_config` files, and early files of today's shape
whose keys have since been renamed. What was rewritten is told key by key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
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
    "load_s3_path": "name the bucket in model_source; its files are fetched in parallel",
    "device": "vLLM's CPU build serves on the CPU, any other on GPUs",
    "use_v2_block_manager": "vLLM has one way of managing blocks",
    "speculative_disable_by_batch_size": "vLLM no longer stops guessing where batches are large",
}
# Arguments that n-gram and draft-model speculation once had → the key of `speculative_config`.
_SPECULATION = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_max_model_len": "max_model_len",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
}
# Environment variables that switched JSON mode on.
_JSON_MODE_VARIABLES = (
    "ANYSCALE_VLLM_ENABLE_JSON_MODE",
    "ANYSCALE_VLLM_USE_V2",
    "ANYSCALE_VLLM_NUM_PROCESSOR_WORKERS",
    "RECREATE_FAILED_ACTORS",
)
_STRUCTURED = "`response_format` and `structured_outputs` always work"
_DESCRIBED = {
    "input_modality": "the model's own config.json says whether it takes images",
    "json_mode": _STRUCTURED,
    "enabled": "list the models you want in the serve config",
    "standalone_function_calling_model": "`tool_calling` says how tool calls are read",
}
# Keys of `engine_config` → the way down to today's. Of several that go to one place, the first given goes.
_ENGINE_CONFIG = {
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
_ENGINE_CONFIG_GONE = {
    "model_type": _MEANINGLESS,
    "model_url": _MEANINGLESS,
    "model_description": _MEANINGLESS,
    "max_batch_size": "vLLM batches what comes by itself",
    "batch_wait_timeout_s": "vLLM batches what comes by itself",
    "optimize": "vLLM runs the model",
}


@dataclass(frozen=True)
class Rewriting:
    """What became of one key of an old file.

    `key` is the way down to it in the old file, `new` are the keys that say it today. `why` explains what is dropped,
    where there are none, and a value that is another now.
    """

    key: str
    new: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        if not self.new:
            return f"`{self.key}` is ignored: {self.why}"
        if self.why:
            return f"`{self.key}` is rewritten: {self.why}"
        return f"`{self.key}` is now {' and '.join(f'`{name}`' for name in self.new)}"


def upgrade(raw: Mapping) -> tuple[Mapping, list[Rewriting]]:
    """Today's spelling of `raw`, and each thing that was rewritten or dropped. `raw` is left as it is."""
    config, done = deepcopy(raw), list[Rewriting]()
    if isinstance(config.get("engine_config"), dict):
        config = _from_engine_config(config, done)
    _rename(config, "generation", "generation_config", done)
    for key, why in _DESCRIBED.items():
        _drop(config, key, why, done)
    _generation(config, done)
    _deployment(config.get("deployment_config"), done)
    _engine_kwargs(config.get("engine_kwargs"), done)
    _json_mode_variables(config, done)
    for key in ("lora_config", "runtime_env", "generation_config", "engine_kwargs", "deployment_config"):
        if key in config and config[key] is None:
            del config[key]
    return config, _as_the_file_has_them(done)


def as_written(key: str, rewritings: Iterable[Rewriting]) -> str:
    """The way down in the old file to what today's `key` says, as far as `rewritings` moved it or what holds it."""
    moves = [(new, each.key) for each in rewritings for new in each.new if key == new or key.startswith(f"{new}.")]
    new, old = max(moves, key=lambda move: len(move[0]), default=(key, key))
    return old + key[len(new) :]


def _as_the_file_has_them(rewritings: list[Rewriting]) -> list[Rewriting]:
    """The same, where later ones named keys as earlier ones had left them."""
    done: list[Rewriting] = []
    for rewriting in rewritings:
        done.append(replace(rewriting, key=as_written(rewriting.key, done)))
    return done


def _rename(holder: Mapping, old: str, new: str, done: list[Rewriting], where: str = "") -> None:
    if old in holder and new not in holder:
        holder[new] = holder.pop(old)
        done.append(Rewriting(f"{where}{old}", (f"{where}{new}",)))


def _rename_or_drop(holder: Mapping, old: str, new: str, done: list[Rewriting], where: str) -> None:
    """As `_rename`, for a name that gave way to its successor, unless that was null or 0."""
    if holder.get(new):
        _drop(holder, old, f"`{where}{new}` is given too, and counts", done, where)
    elif old in holder:
        holder.pop(new, None)
        _rename(holder, old, new, done, where)


def _drop(holder: Mapping, key: str, why: str, done: list[Rewriting], where: str = "") -> None:
    if key in holder:
        del holder[key]
        done.append(Rewriting(f"{where}{key}", why=why))


def _generation(config: Mapping, done: list[Rewriting]) -> None:
    """Put `prompt_format` and the stops that stand inside it where they belong."""
    generation = config.get("generation_config") or {}
    if not isinstance(generation, dict):
        return
    if "prompt_format" in config:
        generation.setdefault("prompt_format", config.pop("prompt_format"))
    if generation:
        config["generation_config"] = generation
    if isinstance(generation.get("prompt_format"), dict):
        _prompt_format(generation, done)
    _stop_ids(generation, done)
    for key in ("stopping_sequences", "stopping_tokens"):
        if generation.get(key, ()) is None:
            del generation[key]


def _prompt_format(generation: Mapping, done: list[Rewriting]) -> None:
    prompt_format, where = generation["prompt_format"], "generation_config.prompt_format."
    for key in ("stopping_sequences", "stopping_tokens"):
        if key in prompt_format:
            inside, beside = prompt_format.pop(key) or [], generation.get(key) or []
            both_are_lists = isinstance(inside, list) and isinstance(beside, list)
            generation[key] = list(dict.fromkeys([*beside, *inside])) if both_are_lists else (beside or inside)
    if "use_hf_chat_templates" in prompt_format:
        prompt_format.setdefault("use_hugging_face_chat_template", prompt_format.pop("use_hf_chat_templates"))
        why = "it is called `use_hugging_face_chat_template`, and is the default"
        done.append(_rewritten(f"{where}use_hf_chat_templates", why))
    if prompt_format == {"use_hugging_face_chat_template": True}:
        generation["prompt_format"] = None
    elif "vision" in prompt_format:
        generation["prompt_format"] = None
        done.append(Rewriting(f"{where}vision", why="a vision model's own chat template places the images"))
    else:
        _tool_templates(prompt_format, where, done)


def _tool_templates(prompt_format: Mapping, where: str, done: list[Rewriting]) -> None:
    """Tools: their places are fixed today, and the placeholders say what they stand for."""
    for key in ("tools_list_in_user", "tools_list_in_last_user"):
        _drop(prompt_format, key, "the offered tools stand in the last user message", done, where)
    for key, placeholder in (("tools_list", "{tools}"), ("tool_calls", "{tool_call}")):
        text = prompt_format.get(key)
        if isinstance(text, str) and placeholder not in text and "{instruction}" in text:
            prompt_format[key] = text.replace("{instruction}", placeholder)
            done.append(_rewritten(f"{where}{key}", f"its placeholder is `{placeholder}` instead of `{{instruction}}`"))
    assistant = prompt_format.get("assistant")
    if isinstance(assistant, str) and "{tool_calls}" in assistant:
        prompt_format["assistant"] = assistant.replace("{tool_calls}", "")
        done.append(_rewritten(f"{where}assistant", "without `{tool_calls}`: calls follow the message's own text"))


def _rewritten(key: str, why: str) -> Rewriting:
    return Rewriting(key, (key,), why)


def _stop_ids(generation: Mapping, done: list[Rewriting]) -> None:
    """Stops were texts, token ids or lists of token ids."""
    stops, ids = generation.get("stopping_sequences"), generation.get("stopping_tokens") or []
    if not isinstance(stops, list) or not isinstance(ids, list):
        return
    ones = [stop[0] if isinstance(stop, list) and len(stop) == 1 else stop for stop in stops]
    found = [stop for stop in ones if isinstance(stop, int) and not isinstance(stop, bool)]
    if found:
        generation["stopping_sequences"] = [stop for stop in ones if stop not in found]
        generation["stopping_tokens"] = list(dict.fromkeys([*ids, *found]))
        done.append(Rewriting("generation_config.stopping_sequences", ("generation_config.stopping_tokens",)))


def _deployment(deployment: Any, done: list[Rewriting]) -> None:
    if not isinstance(deployment, dict):
        return
    _rename_or_drop(deployment, "max_concurrent_queries", "max_ongoing_requests", done, "deployment_config.")
    autoscaling = deployment.get("autoscaling_config")
    if isinstance(autoscaling, dict):
        where = "deployment_config.autoscaling_config."
        old = "target_num_ongoing_requests_per_replica"
        _rename_or_drop(autoscaling, old, "target_ongoing_requests", done, where)
        _rename_or_drop(autoscaling, "upscale_smoothing_factor", "upscaling_factor", done, where)
        _rename_or_drop(autoscaling, "downscale_smoothing_factor", "downscaling_factor", done, where)
        if "smoothing_factor" in autoscaling:
            factor = autoscaling.pop("smoothing_factor")
            new = ("upscaling_factor", "downscaling_factor")
            for name in new:
                autoscaling.setdefault(name, factor)
            done.append(Rewriting(f"{where}smoothing_factor", tuple(f"{where}{name}" for name in new)))


def _engine_kwargs(engine_kwargs: Any, done: list[Rewriting]) -> None:
    if not isinstance(engine_kwargs, dict):
        return
    where = "engine_kwargs."
    for name, why in GONE_ENGINE_ARGUMENTS.items():
        _drop(engine_kwargs, name, why, done, where)
    _rename(engine_kwargs, "override_pooler_config", "pooler_config", done, where)
    if "guided_decoding_backend" in engine_kwargs:
        backend = engine_kwargs.pop("guided_decoding_backend")
        given = engine_kwargs.get("structured_outputs_config") or {}
        engine_kwargs["structured_outputs_config"] = {"backend": backend, **given}
        done.append(Rewriting(f"{where}guided_decoding_backend", (f"{where}structured_outputs_config.backend",)))
    if "speculative_config" not in engine_kwargs:
        _speculation(engine_kwargs, done)


def _speculation(engine_kwargs: Mapping, done: list[Rewriting]) -> None:
    """Speculation had arguments of its own."""
    given = {name: engine_kwargs.pop(name) for name in _SPECULATION if name in engine_kwargs}
    config = {_SPECULATION[name]: value for name, value in given.items() if value is not None}
    if config.get("model") == "[ngram]":
        config["method"] = "ngram"
        del config["model"]
    if config:
        engine_kwargs["speculative_config"] = config
    for name in given:
        key = "method" if name == "speculative_model" and "method" in config else _SPECULATION[name]
        done.append(Rewriting(f"engine_kwargs.{name}", (f"engine_kwargs.speculative_config.{key}",)))


def _json_mode_variables(config: Mapping, done: list[Rewriting]) -> None:
    actor = _mapping(_mapping(config.get("deployment_config")).get("ray_actor_options"))
    places = (("runtime_env", config), ("deployment_config.ray_actor_options.runtime_env", actor))
    for where, holder in places:
        environment = holder.get("runtime_env")
        variables = environment.get("env_vars") if isinstance(environment, dict) else None
        if isinstance(variables, dict):
            for name in _JSON_MODE_VARIABLES:
                _drop(variables, name, _STRUCTURED, done, f"{where}.env_vars.")


def _from_engine_config(old: Mapping, done: list[Rewriting]) -> Mapping:
    """Today's shape of a file with `engine_config`, `scaling_config` and `multiplex_config`."""
    engine, scaling = dict(old.pop("engine_config")), _mapping(old.pop("scaling_config", None))
    config: Mapping = {key: old.pop(key) for key in ("deployment_config", "enabled") if key in old}
    config["model_loading_config"] = {}
    if engine.get("type") == "EmbeddingEngine":
        config["task"] = "embed"
        del engine["type"]
        done.append(Rewriting("engine_config.type", ("task",)))
    elif engine.get("type") == "VLLMEngine":
        engine["type"] = "vLLM"
    for key, path in _ENGINE_CONFIG.items():
        _move(engine, key, config, path, done)
    for key, why in _ENGINE_CONFIG_GONE.items():
        _drop(engine, key, why, done, "engine_config.")
    _handed_on(engine, config, done)
    _scaling(scaling, config, done)
    multiplex = _mapping(old.pop("multiplex_config", None))
    if "max_num_models_per_replica" in multiplex:
        config["lora_config"] = {"max_num_adapters_per_replica": multiplex.pop("max_num_models_per_replica")}
        key = "lora_config.max_num_adapters_per_replica"
        done.append(Rewriting("multiplex_config.max_num_models_per_replica", (key,)))
    # What is left over is unknown: hand it on under its own name, so that the schema refuses it.
    config |= old
    for key, rest in (("engine_config", engine), ("scaling_config", scaling), ("multiplex_config", multiplex)):
        config |= {f"{key}.{name}": value for name, value in rest.items()}
    return config


def _move(engine: Mapping, key: str, config: Mapping, path: tuple[str, ...], done: list[Rewriting]) -> None:
    value = engine.pop(key, None)
    if value is None:
        return
    holder, old = config if len(path) == 1 else config[path[0]], f"engine_config.{key}"
    if isinstance(value, dict) and value.get("bucket_uri", "") is None:
        done.append(Rewriting(old, why="it names no bucket"))
    elif path[-1] in holder:
        done.append(Rewriting(old, why="the weights come from a mirror"))
    else:
        holder[path[-1]] = value
        done.append(Rewriting(old, (".".join(path),)))


def _mapping(value: Any) -> Mapping:
    return dict(value) if isinstance(value, dict) else {}


def _handed_on(engine: Mapping, config: Mapping, done: list[Rewriting]) -> None:
    """Variables of the deploying process that the workers were to have too."""
    names = engine.get("env_vars_to_propogate") or []
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        engine.pop("env_vars_to_propogate", None)
        if names:
            environment = config["runtime_env"] = _mapping(config.get("runtime_env"))
            references = {name: f"${{env:{name}}}" for name in names}
            environment["env_vars"] = references | _mapping(environment.get("env_vars"))
            new = tuple(f"runtime_env.env_vars.{name}" for name in names)
            done.append(Rewriting("engine_config.env_vars_to_propogate", new))


def _scaling(scaling: Mapping, config: Mapping, done: list[Rewriting]) -> None:
    where = "scaling_config."
    # Engines that were no group of workers said 0.
    if workers := scaling.pop("num_workers", None):
        config["tensor_parallelism"] = {"degree": workers}
        done.append(Rewriting(f"{where}num_workers", ("tensor_parallelism.degree",)))
    for key in ("num_cpus_per_worker", "pg_timeout_s"):
        _drop(scaling, key, _MEANINGLESS, done, where)
    per_worker = _mapping(scaling.pop("resources_per_worker", None))
    _accelerator(per_worker, f"{where}resources_per_worker", config, done)
    _accelerator(_actor_resources(config), "deployment_config.ray_actor_options.resources", config, done)
    gpus = scaling.pop("num_gpus_per_worker", 1)
    if not gpus:
        done.append(Rewriting(f"{where}num_gpus_per_worker", why=GONE_ENGINE_ARGUMENTS["device"]))
    if gpus not in (0, 1) or per_worker:
        worker = config["placement_group_config"] = {"bundle_per_worker": {"GPU": gpus, **per_worker}}
        names = ["num_gpus_per_worker"] if gpus != 1 else []
        for name in (*names, *(f"resources_per_worker.{resource}" for resource in per_worker)):
            done.append(Rewriting(f"{where}{name}", ("placement_group_config.bundle_per_worker",)))
        if strategy := scaling.pop("placement_strategy", None):
            worker["strategy"] = strategy
            done.append(Rewriting(f"{where}placement_strategy", ("placement_group_config.strategy",)))
    _drop(scaling, "placement_strategy", "RayLLM packs the workers of a replica itself", done, where)


def _accelerator(resources: Mapping, where: str, config: Mapping, done: list[Rewriting]) -> None:
    """An accelerator was a custom resource: `accelerator_type_a10`, `accelerator_type_a100_80g_aws`."""
    for name in list(resources):
        found = re.fullmatch(r"accelerator_type[:_](.+?)(?:_(?:aws|gcp|gce|azure))?", name)
        if not found:
            continue
        del resources[name]
        if found[1].lower() == "cpu":
            done.append(Rewriting(f"{where}.{name}", why=GONE_ENGINE_ARGUMENTS["device"]))
        else:
            config.setdefault("accelerator_type", found[1].upper().replace("_", "-"))
            done.append(Rewriting(f"{where}.{name}", ("accelerator_type",)))


def _actor_resources(config: Mapping) -> Mapping:
    held: Any = config
    for key in ("deployment_config", "ray_actor_options", "resources"):
        held = held.get(key) if isinstance(held, dict) else None
    return held if isinstance(held, dict) else {}
