"""Usage of requests, written by the process that has the engine: what it counts is in the ledger, whoever else dies."""

from __future__ import annotations

import time
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm import headers
from rayllm.access.usage import UsageEntry
from rayllm.access.usage_ledger import UsageWriter
from rayllm.request_stats import RequestStats, StatsSource
from rayllm.serving.replica.middleware import header


class UsageMeter:
    """ASGI middleware that writes the usage of each request that a key has sent.

    Args:
        app: the next application.
        model_id: the replica's model.
        replica_id: unique id of the replica.
    """

    def __init__(self, app: ASGIApp, model_id: str, replica_id: str) -> None:
        self._app = app
        self._model_id = model_id
        self._replica_id = replica_id
        self._writer: UsageWriter | None = None

    def write_to(self, folder: Path | None) -> None:
        """Write to the ledger in a folder from now on; None writes nothing."""
        if self._writer:
            self._writer.close()
        self._writer = UsageWriter(folder, self._replica_id) if folder else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = header(scope, headers.USAGE)
        source = StatsSource.of(scope)
        if not key or source is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if self._writer:
                self._writer.write(self._entry(scope, key, source.read() or RequestStats()))

    def _entry(self, scope: Scope, key: str, stats: RequestStats) -> UsageEntry:
        return UsageEntry(
            at=round(time.time(), 3),
            id=header(scope, headers.REQUEST_ID),
            key=key,
            model=self._model_id,
            adapter=header(scope, headers.ADAPTER),
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            completion_tokens=stats.generated_tokens,
        )
