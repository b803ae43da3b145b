"""Rewrite the sources of weights, tokenizers and adapters, and relative paths."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from rayllm.config.legacy import Changes, Mapping, at
from rayllm.config.paths import absolute
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
    """The options that RayLLM supports, with their values; all other options are recorded as dropped."""
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


def relocate(
    config: Mapping, folders: tuple[Path, ...], place: Path | None, changes: Changes
) -> tuple[Mapping, Mapping]:
    """Rewrite a model's relative paths, which are looked up in `folders`.

    Returns the mapping with paths relative to the folder `place`, if that is given, and the mapping with absolute ones.
    """
    resolved = deepcopy(config)
    for fault in absolute(resolved, folders, ""):
        key, _, what = fault.removeprefix(": ").partition(": ")
        changes.refuse(key, what)
    return (_relative_to(place, config, resolved) if place else config), resolved


def from_place(place: Path, text: str, path: Path) -> str:
    """`text`, a relative path to `path`, rewritten for a file in the folder `place`."""
    if text.startswith("~") or (place / text).resolve() == path:
        return text
    relative = os.path.relpath(path, place.resolve())
    return relative if relative.startswith("..") else f"./{relative}"


def _relative_to(place: Path, before: Any, after: Any) -> Any:
    if isinstance(before, dict):
        return {key: _relative_to(place, value, after[key]) for key, value in before.items()}
    if isinstance(before, list):
        return [_relative_to(place, *pair) for pair in zip(before, after, strict=True)]
    if before == after:
        return before
    # vLLM's short form of an adapter: `name=path`.
    name, equals, path = after.partition("=") if not after.startswith("/") else ("", "", after)
    return name + equals + from_place(place, before.removeprefix(name + equals), Path(path))
