"""What happens with the record of each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rayllm.serving.router.requests.record import RequestRecord
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.telemetry.request_log import RequestLog

if TYPE_CHECKING:
    from rayllm.serving.router.telemetry.request_traces import Tracing


class Telemetry:
    """Counts, keeps, logs and traces requests.

    Args:
        tracing: exports a trace of each; None exports nothing.
    """

    def __init__(self, metrics: RouterMetrics, recent: RecentRequests, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self.recent = recent
        self.log: RequestLog | None = None
        self._tracing = tracing

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """A request has arrived.

        Args:
            headers: the client's, by lower-case name.
        """
        if self._tracing:
            self._tracing.begin(record, headers)

    def end(self, record: RequestRecord) -> None:
        """A request has ended."""
        record.end()
        self.metrics.observe(record)
        self.recent.add(record)
        if self.log:
            self.log.write(record)
        if self._tracing:
            self._tracing.end(record)

    def close(self) -> None:
        """Write what is left. Blocks."""
        if self.log:
            self.log.close()
        if self._tracing:
            self._tracing.close()
