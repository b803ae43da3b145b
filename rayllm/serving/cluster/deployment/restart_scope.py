"""Which part of a model's configuration restarts its replicas; Ray Serve applies the rest in place."""

from __future__ import annotations

from rayllm.config import ModelConfig
from rayllm.config.scaling import DeploymentConfig

ROLLING = frozenset({"ray_actor_options"})
"""Keys of `deployment_config` whose change restarts replicas."""


def process_part(model: ModelConfig) -> ModelConfig:
    """The model as its replicas get it: without the options that Ray Serve changes in place."""
    kept = {name: getattr(model.deployment_config, name) for name in ROLLING & model.deployment_config.model_fields_set}
    return model.model_copy(update={"deployment_config": DeploymentConfig(**kept)})
