"""Drop or refuse keys of `ray.serve.llm.LLMConfig` that RayLLM does not have.

Source: ray.llm._internal.serve.core.configs.llm_config, Ray 2.60.
"""

from typing import Any

from rayllm.config.legacy import Changes, Mapping, at, tables

_EXPERIMENTS, _REFUSED_SERVERS = tables()["experiments"], tables()["servers"]


def carry_keys(config: Mapping, changes: Changes) -> None:
    """Remove keys of `LLMConfig` from a model's mapping, and record each key as dropped, moved or refused."""
    _accelerator(config, changes)
    _server(config.pop("server_cls", None), changes)
    for name in at(config, "experimental_configs"):
        why = _EXPERIMENTS.get(name, "RayLLM has no such experiment")
        changes.dropped(f"experimental_configs.{name}", why)
    config.pop("experimental_configs", None)
    _callback(config, changes)
    _placement(config, changes)


def _accelerator(config: Mapping, changes: Changes) -> None:
    hardware = config.pop("accelerator_config", None)
    kind = hardware.get("kind") if isinstance(hardware, dict) else hardware
    is_tpu = kind == "tpu" or str(config.get("accelerator_type")).upper().startswith("TPU")
    if is_tpu or any(bundle.get("TPU") for bundle in _bundles(config)):
        changes.refuse("accelerator_config", "TPUs are not carried over; RayLLM places GPUs and CPUs.")
    elif kind == "cpu":
        changes.dropped("accelerator_config", "vLLM's CPU build serves on the CPU, any other on GPUs")
    elif hardware is not None:
        changes.dropped("accelerator_config", "it follows from `accelerator_type`")


def _bundles(config: Mapping) -> list[Mapping]:
    placement = at(config, "placement_group_config")
    bundles = placement.get("bundles")
    candidates = (placement.get("bundle_per_worker"), *(bundles if isinstance(bundles, list) else []))
    return [bundle for bundle in candidates if isinstance(bundle, dict)]


def _server(server: object, changes: Changes) -> None:
    name = str(server or "").replace(":", ".").rpartition(".")[2]
    if name in _REFUSED_SERVERS:
        changes.refuse("server_cls", f"{_REFUSED_SERVERS[name]}.")
    elif name:
        changes.dropped("server_cls", "a replica is RayLLM's own")


def _callback(config: Mapping, changes: Changes) -> None:
    """Turn `CloudDownloader` into `extra_files`, for models in a bucket; drop other callbacks."""
    callback, loading = config.pop("callback_config", None), at(config, "model_loading_config")
    source, pairs = loading.get("model_source"), _pairs(at(callback, "callback_kwargs").get("paths"))
    if isinstance(source, str) and source.startswith(("s3://", "gs://")):
        source = {"bucket_uri": source}
    is_downloader = str(at(callback).get("callback_class")).endswith("CloudDownloader")
    if is_downloader and isinstance(source, dict) and source.get("bucket_uri") and pairs:
        more = [{"bucket_uri": uri, "destination_path": place} for uri, place in pairs]
        loading["model_source"] = {**source, "extra_files": [*(source.get("extra_files") or []), *more]}
        changes.renamed("callback_config", "model_loading_config.model_source.extra_files")
    elif callback:
        why = "nothing runs before a model is loaded; `extra_files` of a bucket fetches files, `runtime_env` sets up"
        changes.dropped("callback_config", why)


def _pairs(value: Any) -> list[list[Any]]:
    """A list of pairs; empty if the value is anything else."""
    are_pairs = isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value)
    return value if are_pairs else []


def _placement(config: Mapping, changes: Changes) -> None:
    placement = at(config, "placement_group_config")
    if placement and not placement.get("strategy"):
        placement["strategy"] = "PACK"
        changes.added("placement_group_config.strategy", "is written as PACK, the default of ray.serve.llm")
    if resources := config.pop("resources_per_bundle", None):
        config["placement_group_config"] = {"bundle_per_worker": resources}
        changes.renamed("resources_per_bundle", "placement_group_config.bundle_per_worker")
