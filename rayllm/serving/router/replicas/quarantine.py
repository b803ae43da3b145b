"""Quarantine of requests that replicas have died of."""

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable

from rayllm.core.errors import QuarantineError

logger = logging.getLogger(__name__)

QUARANTINE_S = 3600.0
"""Seconds that a request stays in quarantine."""
# More are not kept: those that were added first are sent to replicas again.
_MOST = 1000
MESSAGE = (
    "The model's replicas died while they worked on this request, so it is not sent to others. Requests with the same "
    "body are refused for an hour."
)


class Quarantine:
    """Requests that are not sent to replicas any more, by digest."""

    def __init__(self, publish: Callable[[str], Awaitable[object]]) -> None:
        self._publish = publish
        self._ends: dict[str, float] = {}

    def __len__(self) -> int:
        self._remove_old()
        return len(self._ends)

    def check(self, path: str, raw: bytes) -> None:
        """Refuse a request that is in quarantine, with a QuarantineError."""
        # Hardly ever is there any, so bodies are hardly ever hashed.
        if len(self) and _digest(path, raw) in self._ends:
            raise QuarantineError(MESSAGE)

    async def put(self, path: str, raw: bytes, request_id: str) -> None:
        """Quarantine a request, at all routers."""
        digest = _digest(path, raw)
        logger.error(
            "Replicas died while they worked on the request %s. Requests with the same body are refused for an hour "
            "(digest %s).",
            request_id,
            digest,
        )
        self.add(digest)
        await self._publish(digest)

    def add(self, digest: str) -> None:
        """Add a digest, which this or another router has found."""
        self._remove_old()
        self._ends.pop(digest, None)
        while len(self._ends) >= _MOST:
            del self._ends[next(iter(self._ends))]
        self._ends[digest] = time.monotonic() + QUARANTINE_S

    def _remove_old(self) -> None:
        now = time.monotonic()
        for digest in [digest for digest, end in self._ends.items() if end <= now]:
            del self._ends[digest]


def _digest(path: str, raw: bytes) -> str:
    digest = hashlib.blake2b(path.encode(), digest_size=16)
    digest.update(raw)
    return digest.hexdigest()
