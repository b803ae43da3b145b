"""Which models can answer requests now."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from rayllm.config import AppConfig
from rayllm.core.errors import UnavailableError
from rayllm.serving.cluster.background import in_background
from rayllm.serving.cluster.state.start_progress import Start, starts_of

logger = logging.getLogger(__name__)

_ANSWER_S = 3.0
# Seconds between attempts to reach a controller that is restarting.
_REST_S = 2.0


class Deployments(NamedTuple):
    """Ray Serve's status of each deployment in lower case, each model's starting replica, and what has replicas."""

    statuses: Mapping[str, str]
    starts: Mapping[str, Start]
    running: frozenset[str] = frozenset()


def deployments_of(app_name: str) -> Deployments:
    """Status of an application's deployments, from Ray Serve's controller. Blocks."""
    application = serve.status().applications.get(app_name)
    deployments: Mapping[str, Any] = application.deployments if application else {}
    statuses = {name: str(getattr(one.status, "value", one.status)).lower() for name, one in deployments.items()}
    running = frozenset(name for name, one in deployments.items() if one.replica_states.get("RUNNING"))
    return Deployments(statuses, starts_of(app_name), running)


@dataclass(eq=False)
class Readiness:
    """Readiness of each model.

    The router itself knows which models have replicas; about the others it asks Ray Serve's controller, at most once a
    second, and concurrent requests share the answer.

    Args:
        is_running: whether a model has a replica that takes requests, by model id.
        ask: gets the statuses from the controller; blocks.
        max_age_s: seconds for which statuses are cached.
    """

    config: AppConfig
    names: Mapping[str, str]
    is_running: Callable[[str], bool]
    ask: Callable[[], Deployments]
    max_age_s: float = 1.0

    def __post_init__(self) -> None:
        self._deployments: Deployments | None = None
        self._good_until = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def phase(self, model_id: str) -> str:
        """What the model is doing. Raises UnavailableError if Ray Serve's controller does not answer.

        One of `running`, `scaled to zero`, the phase of a replica's start (`fetch`, `load` or `warm_up`), `waiting` for
        a replica to be placed, and `not deployed`.
        """
        if self.is_running(model_id):
            return "running"
        deployments = await self.deployments()
        if start := deployments.starts.get(model_id):
            return start.phase
        if self._is_asleep(model_id, deployments):
            return "running" if self.names[model_id] in deployments.running else "scaled to zero"
        return "waiting" if self.names[model_id] in deployments.statuses else "not deployed"

    async def not_ready_reason(self, model_id: str) -> str | None:
        """Why the model cannot answer; None if the model can, or will scale from zero. Raises as `phase`."""
        if self.is_running(model_id):
            return None
        deployments = await self.deployments()
        status = deployments.statuses.get(self.names[model_id])
        if status is None:
            return "it is not deployed"
        if self._is_asleep(model_id, deployments):
            return None
        start = deployments.starts.get(model_id)
        return f"it has no running replica ({status})" + (f"; one is starting: {start}" if start else "")

    def _is_asleep(self, model_id: str, deployments: Deployments) -> bool:
        status = deployments.statuses.get(self.names[model_id])
        return model_id in self.config.at_zero and status in ("healthy", "upscaling", "downscaling")

    async def deployments(self) -> Deployments:
        """The deployments as of the last second. Raises UnavailableError if Ray Serve's controller does not answer."""
        if time.monotonic() >= self._good_until:
            if self._asking is None or self._asking.done():
                self._asking = in_background(self._refresh())
            await asyncio.shield(self._asking)
        if self._deployments is None:
            raise UnavailableError("Ray Serve's controller does not answer.", None, "not_ready", 5)
        return self._deployments

    async def _refresh(self) -> None:
        try:
            self._deployments = await asyncio.wait_for(asyncio.to_thread(self.ask), _ANSWER_S)
            self._good_until = time.monotonic() + self.max_age_s
        except (TimeoutError, RayError, RayServeException) as error:
            logger.warning("Ray Serve's controller does not answer: %r", error)
            self._deployments = None
            self._good_until = time.monotonic() + _REST_S
