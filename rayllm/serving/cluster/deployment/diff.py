"""Diff of two configurations: what a deployment does to each model, and what restarts its replicas."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rayllm.config import AppConfig, ModelConfig
from rayllm.config.scaling import DeploymentConfig

ROLLING = frozenset({"ray_actor_options"})
"""Keys of `deployment_config` whose change restarts replicas."""
_Model = tuple[dict[str, Any], dict[str, Any]]
"""A model's configuration, and the part of it that its processes depend on."""


def process_part(model: ModelConfig) -> ModelConfig:
    """The part of a model that restarts replicas: without the options that Ray Serve changes in place."""
    kept = {name: getattr(model.deployment_config, name) for name in ROLLING & model.deployment_config.model_fields_set}
    return model.model_copy(update={"deployment_config": DeploymentConfig(**kept)})


class Effect(StrEnum):
    """The effect of a deployment on a model."""

    ADDED = "added"
    REMOVED = "removed"
    ROLLED = "rolled"
    """Its replicas are restarted."""
    IN_PLACE = "in place"
    """Its replicas keep running; their number may change."""
    UNTOUCHED = "untouched"
    UNKNOWN = "unknown"
    """It runs with an unknown configuration."""


@dataclass(frozen=True)
class Change:
    """The effect of a deployment on one model, and the keys that differ."""

    model_id: str
    effect: Effect
    keys: tuple[str, ...] = ()


def changes(before: AppConfig | None, after: AppConfig | None, running: frozenset[str] = frozenset()) -> list[Change]:
    """The effect on every model of either configuration, sorted by id.

    Args:
        before: the deployed configuration, if any is known.
        after: the new configuration; None to remove everything.
        running: ids of deployed models, if `before` is unknown.
    """
    old, new = _models(before), _models(after)
    result = [Change(model_id, Effect.REMOVED) for model_id in old.keys() - new.keys()]
    for model_id, model in new.items():
        if model_id in old:
            result.append(_change(model_id, old[model_id], model))
        else:
            result.append(Change(model_id, Effect.UNKNOWN if model_id in running else Effect.ADDED))
    return sorted(result, key=lambda change: change.model_id)


def router_keys(before: AppConfig | None, after: AppConfig | None) -> tuple[str, ...]:
    """The router options that differ."""
    if before is None or after is None:
        return ()
    return different(before.router.model_dump(mode="json"), after.router.model_dump(mode="json"))


def different(old: Any, new: Any, prefix: str = "") -> tuple[str, ...]:
    """The dotted keys under which two mappings differ."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return () if old == new else (prefix,)
    dotted = {key: f"{prefix}.{key}" if prefix else str(key) for key in old.keys() | new.keys()}
    return tuple(name for key in sorted(dotted, key=str) for name in different(old.get(key), new.get(key), dotted[key]))


def _change(model_id: str, old: _Model, new: _Model) -> Change:
    (whole, process), (new_whole, new_process) = old, new
    keys = different(whole, new_whole)
    if process != new_process:
        return Change(model_id, Effect.ROLLED, keys)
    return Change(model_id, Effect.IN_PLACE if keys else Effect.UNTOUCHED, keys)


def _models(config: AppConfig | None) -> dict[str, _Model]:
    models: dict[str, _Model] = {}
    if config is None:
        return models
    for model in config.models:
        aliases = sorted(name for name, target in config.router.model_aliases.items() if target == model.model_id)
        named = {"router": {"model_aliases": aliases}}
        whole, process = (each.model_dump(mode="json") | named for each in (model, process_part(model)))
        models[model.model_id] = whole, process
    return models
