"""Which models can answer now, as Ray Serve's controller sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from ray import serve
from ray.exceptions import RayError

from rayllm.config import AppConfig
from rayllm.errors import UnavailableError

logger = logging.getLogger(__name__)


class DeploymentStates:
    """The state of each model's deployment, asked for at most once a second.

    Its methods raise UnavailableError where Ray Serve's controller does not answer.
    """

    def __init__(self, config: AppConfig, names: dict[str, str], app_name: str, max_age_s: float = 1.0) -> None:
        self._names = names
        self._sleepers = {
            model.model_id
            for model in config.models
            if (scaling := model.deployment_config.autoscaling_config) and scaling.min_replicas == 0
        }
        self._app_name = app_name
        self._max_age_s = max_age_s
        self._deployments: dict[str, Any] = {}
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def running(self, model_id: str) -> bool:
        """Whether a replica of the model is up."""
        deployment = (await self._fresh()).get(self._names[model_id])
        return deployment is not None and deployment.replica_states.get("RUNNING", 0) > 0

    async def why_not_ready(self, model_id: str) -> str | None:
        """None where the model can answer, or will scale from zero; else one sentence."""
        if await self.running(model_id):
            return None
        deployment = self._deployments.get(self._names[model_id])
        if deployment is None:
            return "it is not deployed"
        status = str(getattr(deployment.status, "value", deployment.status))
        if model_id in self._sleepers and status in ("HEALTHY", "UPSCALING", "DOWNSCALING"):
            return None
        return f"it has no running replica ({status.lower()})"

    async def _fresh(self) -> dict[str, Any]:
        async with self._asking:
            if time.monotonic() - self._asked_at > self._max_age_s:
                try:
                    status = await asyncio.wait_for(asyncio.to_thread(serve.status), timeout=10)
                except (TimeoutError, RayError) as error:
                    logger.warning("Ray Serve's controller does not answer: %r", error)
                    raise UnavailableError("Ray Serve's controller does not answer.", None, "not_ready", 5) from None
                application = status.applications.get(self._app_name)
                self._deployments = dict(application.deployments) if application else {}
                self._asked_at = time.monotonic()
        return self._deployments
