"""The version of its weights that a deployment serves: the same in all replicas, whenever they start.

A branch on the hub or a folder in a bucket may change between the start of one replica and the next.
"""

from __future__ import annotations

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
# Seconds after which a version that no replica has renewed is dropped; the next replica then takes the current one.
HELD_S = 120.0


class ServedVersionsActor(DetachedActor):
    """Versions being served, by deployment. One detached actor of the cluster."""

    def __init__(self, version: str = "", held_s: float = HELD_S) -> None:
        super().__init__(version)
        self._held_s = held_s
        self._held: dict[str, tuple[Version, float]] = {}

    def hold(self, key: str, version: Version | None) -> Version | None:
        """The version held for `key`; without one, hold `version`."""
        now = time.monotonic()
        self._held = {k: (v, until) for k, (v, until) in self._held.items() if until > now}
        held = self._held.get(key, (version, 0.0))[0]
        if held is not None and version is not None:
            self._held[key] = (held, now + self._held_s)
        return held

    def state(self) -> dict[str, Any]:
        """The versions held, without their ages."""
        return {key: asdict(version) for key, (version, _) in self._held.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Hold these as well, unless others are held by now."""
        until = time.monotonic() + self._held_s
        self._held = {key: (Version(**v), until) for key, v in state.items()} | self._held


class ServedVersion:
    """The version of one source in one deployment."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._renewing: asyncio.Task[None] | None = None

    async def get(self) -> Version | None:
        """The version that other replicas serve; None if there are none."""
        return await self._hold(None)

    async def decide(self, version: Version) -> Version:
        """Serve `version`, or the version of another replica that was faster; returns the one chosen.

        It is renewed for the lifetime of this process.
        """
        held = await self._hold(version) or version
        self._renewing = asyncio.create_task(self._renew(held))
        return held

    async def _renew(self, version: Version) -> None:
        while True:
            await asyncio.sleep(HELD_S / 4)
            await self._hold(version)

    async def _hold(self, version: Version | None) -> Version | None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                # It blocks on Ray.
                actor = await asyncio.to_thread(detached_actor, ServedVersionsActor, _ACTOR)
                held: Version | None = await actor.hold.remote(self._key, version)
                return held
        except (RayError, TimeoutError) as error:
            # Serving goes on without the actor; only replicas that start now could differ.
            logger.warning("The registry of served versions does not answer: %r", error)
            return None
