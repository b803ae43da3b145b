"""What decides whether Ray Serve starts a deployment's replicas anew: its code version, given by RayLLM.

Serve's own is the same for all deployments of an application: a digest of all `args`, or a random text in `serve.run`.
So a change to one model would start every model anew. Ours is a digest of what the processes of one deployment are made
of; what else changes, Serve changes in place.
"""

from __future__ import annotations

import functools
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr
from ray.serve import Deployment
from ray.serve._private.config import DeploymentConfig


class _OwnVersion(DeploymentConfig):  # type: ignore[misc]
    """Options that keep their version when Serve sets the application's."""

    _own: str = PrivateAttr("")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._own if name == "version" else value)


def versioned(deployment: Deployment, made_of: Any) -> Deployment:
    """The deployment, whose replicas are started anew when RayLLM's code or `made_of` changes.

    Ray Serve adds by itself what the actors take of their nodes, with their runtime environments.

    Args:
        deployment: one that is not bound yet.
        made_of: what its processes are given, as JSON.
    """
    config = deployment._deployment_config
    own = _OwnVersion(**{name: getattr(config, name) for name in DeploymentConfig.model_fields})
    own._own = _digest([source_digest(), made_of])
    deployment._deployment_config = own
    return deployment


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@functools.cache
def source_digest() -> str:
    """Of RayLLM's own code and data, so that a new RayLLM starts everything anew."""
    home = Path(str(resources.files("rayllm")))
    files = sorted(path for path in home.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _digest([[str(path.relative_to(home)), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files])
