"""Counts, keeps, logs and traces each request."""

import json
import logging
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.wire.record import RequestRecord

if TYPE_CHECKING:
    from rayllm.serving.router.telemetry.request_traces import Tracing


_MAX_BYTES, _BACKUPS = 100_000_000, 5


class RequestLog:
    """Log of requests: a file of JSON lines, which is rotated."""

    def __init__(self, file: Path) -> None:
        self._handler = RotatingFileHandler(file, maxBytes=_MAX_BYTES, backupCount=_BACKUPS, delay=True)

    def write(self, record: RequestRecord) -> None:
        """Append a request that has ended, without prompt or answer."""
        line = json.dumps(record.as_json())
        self._handler.handle(logging.LogRecord("rayllm.requests", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._handler.close()


class Telemetry:
    def __init__(self, metrics: RouterMetrics, recent: RecentRequests, tracing: "Tracing | None" = None) -> None:
        self.metrics = metrics
        self.recent = recent
        self.log: RequestLog | None = None
        self._tracing = tracing

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        if self._tracing:
            self._tracing.begin(record, headers)

    def end(self, record: RequestRecord) -> None:
        record.end()
        self.metrics.observe(record)
        self.recent.add(record)
        if self.log:
            self.log.write(record)
        if self._tracing:
            self._tracing.end(record)

    def close(self) -> None:
        """Write the last entries. Blocks."""
        if self.log:
            self.log.close()
        if self._tracing:
            self._tracing.close()
