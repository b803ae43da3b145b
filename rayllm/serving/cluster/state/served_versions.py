"""The version of the weights that a deployment serves: the same in all replicas, whenever they start.

A branch on the hub or a folder in a bucket may change between the starts of two replicas.
"""

import asyncio
import logging
import time
from dataclasses import asdict
from typing import Any

from ray.exceptions import RayError

from rayllm.serving.cluster.state.detached_actor import DetachedActor, detached_actor
from rayllm.sources import Version

logger = logging.getLogger(__name__)

_ACTOR = "rayllm-versions"
_ANSWER_S = 15.0
# Seconds after which a version is dropped unless a replica renews it; the next replica then serves the current version.
_KEPT_S = 120.0


class ServedVersionsActor(DetachedActor):
    """Versions being served, by deployment. A detached actor of the cluster."""

    def __init__(self, version: str = "", kept_s: float = _KEPT_S) -> None:
        super().__init__(version)
        self._kept_s = kept_s
        self._kept: dict[str, tuple[Version, float]] = {}

    def hold(self, key: str, version: Version | None) -> Version | None:
        """Keep `version` for `key`, or renew the version kept already; returns the version kept."""
        now = time.monotonic()
        self._kept = {k: (v, until) for k, (v, until) in self._kept.items() if until > now}
        kept = self._kept.get(key, (version, 0.0))[0]
        if kept is not None and version is not None:
            self._kept[key] = (kept, now + self._kept_s)
        return kept

    def state(self) -> dict[str, Any]:
        """The versions kept, without their ages."""
        return {key: asdict(version) for key, (version, _) in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Add the versions of another actor, except for keys that have a version already."""
        until = time.monotonic() + self._kept_s
        self._kept = {key: (Version(**v), until) for key, v in state.items()} | self._kept


class ServedVersion:
    """The version of one source in one deployment."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._renewing: asyncio.Task[None] | None = None

    async def get(self) -> Version | None:
        """The version that other replicas serve, if any."""
        return await self._hold(None)

    async def decide(self, version: Version) -> Version:
        """Choose `version`, or that of a replica that was faster, for the lifetime of this process."""
        chosen = await self._hold(version) or version
        self._renewing = asyncio.create_task(self._renew(chosen))
        return chosen

    async def _renew(self, version: Version) -> None:
        while True:
            await asyncio.sleep(_KEPT_S / 4)
            await self._hold(version)

    async def _hold(self, version: Version | None) -> Version | None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                # It blocks on Ray.
                actor = await asyncio.to_thread(detached_actor, ServedVersionsActor, _ACTOR)
                kept: Version | None = await actor.hold.remote(self._key, version)
                return kept
        except (RayError, TimeoutError) as error:
            # Serving continues without the actor; only replicas that start now could differ.
            logger.warning("The registry of served versions does not answer: %r", error)
            return None
