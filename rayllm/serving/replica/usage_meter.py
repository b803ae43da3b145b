"""Usage of requests, written by the process that has the engine: what it counts is in the ledger, whoever else dies."""

import asyncio
import json
import time
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.access.usage import UsageEntry
from rayllm.access.usage_ledger import UsageLedger, UsageWriter
from rayllm.access.usage_upload import UsageUpload, keep_uploading
from rayllm.core import headers
from rayllm.core.asgi import header
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.core.token_log import TokenLog


class UsageMeter:
    """ASGI middleware that writes the usage of each request that a key has sent.

    It is written before the last part of the reply is sent: a client that has its reply is counted, even if this
    process is killed next. If another replica continues a stream, that replica writes the usage of the whole.
    """

    def __init__(self, app: ASGIApp, model_id: str, replica_id: str) -> None:
        self._app = app
        self._model_id = model_id
        self._replica_id = replica_id
        self._writer: UsageWriter | None = None
        self._upload: UsageUpload | None = None
        self._uploading: asyncio.Task[None] | None = None

    def write_to(self, ledger: UsageLedger | None) -> None:
        """Write to a ledger from now on; None writes nothing."""
        if self._writer:
            self._writer.close()
        if self._uploading:
            self._uploading.cancel()
        self._writer = UsageWriter(ledger.folder, self._replica_id) if ledger else None
        self._upload = UsageUpload(ledger) if ledger and ledger.is_uploaded else None
        self._uploading = asyncio.create_task(keep_uploading(self._upload)) if self._upload else None

    async def close(self) -> None:
        """Write no more, and upload what is left."""
        upload = self._upload
        self.write_to(None)
        if upload:
            await asyncio.to_thread(upload.run)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = header(scope, headers.USAGE)
        source = StatsSource.in_scope(scope)
        if not key or source is None:
            await self._app(scope, receive, send)
            return
        is_due = True

        def write() -> None:
            nonlocal is_due
            log = TokenLog.in_scope(scope)
            if self._writer and is_due and not (log and log.continues_elsewhere):
                self._writer.write(self._entry(scope, key, source.read() or RequestStats()))
            is_due = False

        def send_counted(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                write()
            return send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            # If it has broken off.
            write()

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
            labels=json.loads(header(scope, headers.LABELS) or "{}"),
        )
