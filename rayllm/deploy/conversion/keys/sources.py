"""Rewrite the sources of weights, tokenizers and adapters."""

from __future__ import annotations

from typing import Any

from rayllm.config.legacy import Changes
from rayllm.config.legacy.nested import Mapping, at
from rayllm.config.source import S3Options

_OPTIONS = {"--" + name.replace("_", "-") for name in S3Options.model_fields}


def carry_sources(config: Mapping, changes: Changes) -> None:
    """Rewrite the sources in `model_loading_config` and `lora_config`."""
    loading, lora = config.get("model_loading_config"), at(config, "lora_config")
    if isinstance(loading, dict):
        if loading.pop("anytensor_config", None):
            why = "weights are fetched in parallel anyway; `engine_kwargs.load_format: runai_streamer` streams them"
            changes.dropped("model_loading_config.anytensor_config", why)
        for key in ("model_source", "tokenizer_source"):
            if key in loading:
                loading[key] = _source(loading[key], f"model_loading_config.{key}", changes)
    timeout = lora.get("download_timeout_s")
    if isinstance(timeout, int | float) and timeout <= 0:
        lora["download_timeout_s"] = None
        changes.rewritten("lora_config.download_timeout_s", "is null now, which is no limit")


def _source(value: Any, key: str, changes: Changes) -> Any:
    if not isinstance(value, dict) or "bucket_uri" not in value:
        return value
    source = {name: option for name, option in value.items() if option is not None}
    if "bucket_uri" not in source:
        for name in source:
            if source[name]:
                changes.dropped(f"{key}.{name}", "only a source with a `bucket_uri` has it")
        return None
    if isinstance(arguments := source.get("s3_sync_args"), list):
        source["s3_sync_args"] = _supported(arguments, f"{key}.s3_sync_args", changes)
    return {name: option for name, option in source.items() if option != []}


def _supported(arguments: list[Any], key: str, changes: Changes) -> list[Any]:
    """The options that RayLLM supports, with their values; others are recorded as dropped."""
    kept, is_known = list[Any](), True
    for argument in arguments:
        option = str(argument).partition("=")[0]
        if option.startswith("--"):
            is_known = option in _OPTIONS
            if not is_known:
                changes.dropped(key, f"`{option}` has no effect: RayLLM only fetches what serving needs")
        if is_known:
            kept.append(argument)
    return kept
