"""The code version of a deployment, which decides whether Ray Serve restarts its replicas.

Serve itself gives all deployments of an application one version: a digest of all `args`, or a random string in
`serve.run`. A change to one model would restart every model. RayLLM's is a digest of what the processes of one
deployment depend on; Serve applies all other changes in place.
"""

import functools
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr
from ray.serve import Deployment
from ray.serve._private.config import DeploymentConfig


class _VersionedConfig(DeploymentConfig):  # type: ignore[misc]
    """Options that keep their own version when Serve assigns the application's."""

    _own: str = PrivateAttr("")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._own if name == "version" else value)


def versioned(deployment: Deployment, depends_on: Any) -> Deployment:
    """The deployment, whose replicas restart when RayLLM's code or `depends_on` changes.

    Ray Serve itself adds the actors' resources and runtime environments. `depends_on` is JSON.
    """
    config = deployment._deployment_config
    own = _VersionedConfig(**{name: getattr(config, name) for name in DeploymentConfig.model_fields})
    own._own = _digest([source_digest(), depends_on])
    deployment._deployment_config = own
    return deployment


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@functools.cache
def source_digest() -> str:
    """Digest of RayLLM's own code and data, whose change restarts everything."""
    package = Path(str(resources.files("rayllm")))
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _digest([[str(path.relative_to(package)), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files])
