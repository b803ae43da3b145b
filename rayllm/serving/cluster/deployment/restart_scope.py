"""The part of a model's configuration that its replicas' processes are made of; the rest Ray Serve applies in place."""

from __future__ import annotations

from rayllm.config import ModelConfig
from rayllm.config.scaling import DeploymentConfig

ROLLING = frozenset({"ray_actor_options"})
"""Keys of `deployment_config` that replicas are started anew for."""


def process_part(model: ModelConfig) -> ModelConfig:
    """The model as its replicas get it: without what a change of which leaves them running."""
    kept = {name: getattr(model.deployment_config, name) for name in ROLLING & model.deployment_config.model_fields_set}
    return model.model_copy(update={"deployment_config": DeploymentConfig(**kept)})
