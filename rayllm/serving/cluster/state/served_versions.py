"""Which version of its weights a deployment serves: the same in every replica, whenever it starts.

A branch of the hub or a folder of a bucket may change between the start of one replica and the next.
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
# A version that nobody has renewed for so long is served by nobody: the next replica takes what is there then.
HELD_S = 120.0


class Ledger(DetachedActor):
    """The versions that are being served, by deployment. Runs in one actor of the cluster."""

    def __init__(self, version: str = "", held_s: float = HELD_S) -> None:
        super().__init__(version)
        self._held_s = held_s
        self._held: dict[str, tuple[Version, float]] = {}

    def hold(self, key: str, version: Version | None) -> Version | None:
        """The version that counts for `key`: the one that is held, else `version`, which is held from now on."""
        now = time.monotonic()
        self._held = {k: (v, until) for k, (v, until) in self._held.items() if until > now}
        held = self._held.get(key, (version, 0.0))[0]
        if held is not None and version is not None:
            self._held[key] = (held, now + self._held_s)
        return held

    def state(self) -> dict[str, Any]:
        """The versions that are held; how long they have been is forgotten."""
        return {key: asdict(version) for key, (version, _) in self._held.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Hold these as well, unless another is held by now."""
        until = time.monotonic() + self._held_s
        self._held = {key: (Version(**v), until) for key, v in state.items()} | self._held


class ServedVersion:
    """The version of one source in one deployment.

    Args:
        key: names the deployment and the source.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._renewing: asyncio.Task[None] | None = None

    async def ask(self) -> Version | None:
        """The version that other replicas serve; None where there are none."""
        return await self._hold(None)

    async def decide(self, version: Version) -> Version:
        """Serve `version`, unless another replica was faster: then the version that it serves.

        It is held for as long as this process lives: loading a model takes longer than a version that nobody renews.
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
                # In a thread, since it asks Ray.
                ledger = await asyncio.to_thread(detached_actor, Ledger, _ACTOR)
                held: Version | None = await ledger.hold.remote(self._key, version)
                return held
        except (RayError, TimeoutError) as error:
            # Serving goes on without the ledger; only replicas that start now could differ.
            logger.warning("The ledger of served versions does not answer: %r", error)
            return None
