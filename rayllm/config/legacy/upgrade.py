"""RayLLM 1's spellings in model files, rewritten to the current schema; files of older formats are refused."""

import re
from copy import deepcopy
from typing import Any

from rayllm.config.legacy.changes import Changes, Mapping, at, tables
from rayllm.core.errors import ConfigError

_REMOVED_APPLICATION = re.compile(r"(rayllm|aviary|aviary_private_endpoints)\.(backend|frontend)[\w.]*:\w+")


def refuse_removed_model(raw: Mapping, name: str) -> None:
    """Refuse a model's file of a format older than RayLLM 1; raises ConfigError."""
    for key, why in tables()["removed_formats"].items():
        if key in raw:
            raise ConfigError(f"{name}: {key}: {why}")


def refuse_removed_application(import_path: Any, name: str) -> None:
    """Refuse an application of a format older than RayLLM 1, by its import path; raises ConfigError."""
    if _REMOVED_APPLICATION.fullmatch(str(import_path)):
        raise ConfigError(
            f"{name}.import_path: `{import_path}` is RayLLM 0's, Aviary's or Private Endpoints', whose files RayLLM no "
            "longer reads; use `rayllm:app`, with all models in `args.llm_configs` (docs/configuration.md)."
        )


def upgrade(raw: Mapping, changes: Changes) -> Mapping:
    """A model's raw mapping in the current schema; `changes` records each rewritten or dropped key."""
    config = deepcopy(raw)
    changes.rename_in(config, "generation", "generation_config")
    for key, why in tables()["removed_keys"].items():
        changes.drop_from(config, key, why)
    _generation(config, changes)
    _deployment(config.get("deployment_config"), changes)
    _engine_kwargs(config.get("engine_kwargs"), changes)
    for path in (("runtime_env", "env_vars"), ("deployment_config", "ray_actor_options", "runtime_env", "env_vars")):
        for name, why in tables()["json_mode_variables"].items():
            changes.drop_from(at(config, *path), name, why, ".".join(path) + ".")
    for key in ("lora_config", "runtime_env", "generation_config", "engine_kwargs", "deployment_config"):
        if key in config and config[key] is None:
            del config[key]
    return config


def _rename_or_drop(holder: Mapping, old: str, new: str, where: str, changes: Changes) -> None:
    """Rename a key unless the new key is set; null and 0 under the new key do not count."""
    if holder.get(new):
        changes.drop_from(holder, old, f"`{where}{new}` is given too, and counts", where)
    elif old in holder:
        holder.pop(new, None)
        changes.rename_in(holder, old, new, where)


def _generation(config: Mapping, changes: Changes) -> None:
    """Move `prompt_format` and its stops to `generation_config`."""
    generation = config.get("generation_config") or {}
    if not isinstance(generation, dict):
        return
    if "prompt_format" in config:
        generation.setdefault("prompt_format", config.pop("prompt_format"))
    if generation:
        config["generation_config"] = generation
    if isinstance(generation.get("prompt_format"), dict):
        _prompt_format(generation, changes)
    _stop_ids(generation, changes)
    for key in ("stopping_sequences", "stopping_tokens"):
        if generation.get(key, ()) is None:
            del generation[key]


def _prompt_format(generation: Mapping, changes: Changes) -> None:
    prompt_format, where = generation["prompt_format"], "generation_config.prompt_format."
    for key in ("stopping_sequences", "stopping_tokens"):
        if key in prompt_format:
            inner, outer = prompt_format.pop(key) or [], generation.get(key) or []
            are_lists = isinstance(inner, list) and isinstance(outer, list)
            generation[key] = list(dict.fromkeys([*outer, *inner])) if are_lists else (outer or inner)
    if "use_hf_chat_templates" in prompt_format:
        prompt_format.setdefault("use_hugging_face_chat_template", prompt_format.pop("use_hf_chat_templates"))
        why = "it is called `use_hugging_face_chat_template`, and is the default"
        changes.rewritten(f"{where}use_hf_chat_templates", why)
    if prompt_format == {"use_hugging_face_chat_template": True}:
        generation["prompt_format"] = None
    elif "vision" in prompt_format:
        generation["prompt_format"] = None
        changes.dropped(f"{where}vision", "a vision model's own chat template places the images")
    else:
        _tool_templates(prompt_format, where, changes)


def _tool_templates(prompt_format: Mapping, where: str, changes: Changes) -> None:
    """Drop the positions of tools, which are fixed now, and rename placeholders."""
    for key in ("tools_list_in_user", "tools_list_in_last_user"):
        changes.drop_from(prompt_format, key, "the offered tools stand in the last user message", where)
    for key, placeholder in (("tools_list", "{tools}"), ("tool_calls", "{tool_call}")):
        text = prompt_format.get(key)
        if isinstance(text, str) and placeholder not in text and "{instruction}" in text:
            prompt_format[key] = text.replace("{instruction}", placeholder)
            changes.rewritten(f"{where}{key}", f"its placeholder is `{placeholder}` instead of `{{instruction}}`")
    assistant = prompt_format.get("assistant")
    if isinstance(assistant, str) and "{tool_calls}" in assistant:
        prompt_format["assistant"] = assistant.replace("{tool_calls}", "")
        changes.rewritten(f"{where}assistant", "without `{tool_calls}`: calls follow the message's own text")


def _stop_ids(generation: Mapping, changes: Changes) -> None:
    """Separate stops that are token ids, or lists of one id, from texts."""
    stops, ids = generation.get("stopping_sequences"), generation.get("stopping_tokens") or []
    if not isinstance(stops, list) or not isinstance(ids, list):
        return
    flat = [stop[0] if isinstance(stop, list) and len(stop) == 1 else stop for stop in stops]
    stop_ids = [stop for stop in flat if isinstance(stop, int) and not isinstance(stop, bool)]
    if stop_ids:
        generation["stopping_sequences"] = [stop for stop in flat if stop not in stop_ids]
        generation["stopping_tokens"] = list(dict.fromkeys([*ids, *stop_ids]))
        changes.renamed("generation_config.stopping_sequences", "generation_config.stopping_tokens")


def _deployment(deployment: Any, changes: Changes) -> None:
    if not isinstance(deployment, dict):
        return
    _rename_or_drop(deployment, "max_concurrent_queries", "max_ongoing_requests", "deployment_config.", changes)
    autoscaling = deployment.get("autoscaling_config")
    if isinstance(autoscaling, dict):
        where = "deployment_config.autoscaling_config."
        old = "target_num_ongoing_requests_per_replica"
        _rename_or_drop(autoscaling, old, "target_ongoing_requests", where, changes)
        _rename_or_drop(autoscaling, "upscale_smoothing_factor", "upscaling_factor", where, changes)
        _rename_or_drop(autoscaling, "downscale_smoothing_factor", "downscaling_factor", where, changes)
        if "smoothing_factor" in autoscaling:
            factor = autoscaling.pop("smoothing_factor")
            new = ("upscaling_factor", "downscaling_factor")
            for name in new:
                autoscaling.setdefault(name, factor)
            changes.renamed(f"{where}smoothing_factor", *(f"{where}{name}" for name in new))


def _engine_kwargs(engine_kwargs: Any, changes: Changes) -> None:
    if not isinstance(engine_kwargs, dict):
        return
    where = "engine_kwargs."
    for name, why in tables()["removed_arguments"].items():
        changes.drop_from(engine_kwargs, name, why, where)
    changes.rename_in(engine_kwargs, "override_pooler_config", "pooler_config", where)
    if "guided_decoding_backend" in engine_kwargs:
        backend = engine_kwargs.pop("guided_decoding_backend")
        config = engine_kwargs.get("structured_outputs_config") or {}
        engine_kwargs["structured_outputs_config"] = {"backend": backend, **config}
        changes.renamed(f"{where}guided_decoding_backend", f"{where}structured_outputs_config.backend")
    if "speculative_config" not in engine_kwargs:
        _speculation(engine_kwargs, changes)


def _speculation(engine_kwargs: Mapping, changes: Changes) -> None:
    """Move the arguments of speculation into `speculative_config`."""
    keys = tables()["speculation"]
    arguments = {name: engine_kwargs.pop(name) for name in keys if name in engine_kwargs}
    config = {keys[name]: value for name, value in arguments.items() if value is not None}
    if config.get("model") == "[ngram]":
        config["method"] = "ngram"
        del config["model"]
    if config:
        engine_kwargs["speculative_config"] = config
    for name in arguments:
        key = "method" if name == "speculative_model" and "method" in config else keys[name]
        changes.renamed(f"engine_kwargs.{name}", f"engine_kwargs.speculative_config.{key}")
