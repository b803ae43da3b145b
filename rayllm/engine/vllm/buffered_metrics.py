"""Metrics that buffer their values, and record many of them at once.

vLLM records most of its metrics at every step of the engine, and some for every token. `ray_metrics` and
`prometheus_metrics` have the classes that it uses for them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

logger = logging.getLogger(__name__)

MOST_CHILDREN = 1000
"""Labelled series that a metric caches. Some of vLLM's labels list adapters, so there may be any number of them."""


class MetricsBuffer:
    """Series with values that are not recorded yet.

    Any thread may append values while another flushes them: deques need no lock for either.
    """

    def __init__(self) -> None:
        self._unrecorded: deque[BufferedSeries] = deque()

    def add(self, series: BufferedSeries) -> None:
        """Record the values of the series at the next flush."""
        self._unrecorded.append(series)

    def flush(self) -> None:
        """Record all values so far. A series that fails costs no other."""
        for _ in range(len(self._unrecorded)):
            try:
                self._unrecorded.popleft().flush()
            except Exception:
                logger.exception("Values of one of the engine's metrics were not recorded.")


class BufferedSeries:
    """Mixin for a class of metrics, which buffers values and caches a child for each set of labels.

    vLLM looks some of the children up at every step, which takes longer than to record a value.
    """

    buffer: ClassVar[MetricsBuffer]

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._values: deque[float] = deque()
        self._children: dict[Hashable, Any] = {}

    def labels(self, *labels: object, **named: object) -> Any:
        """Return the child with these labels."""
        key = labels, *named.values()
        child = self._children.get(key)
        if child is None:
            if len(self._children) >= MOST_CHILDREN:
                self._children.clear()
            child = self._children[key] = super().labels(*labels, **named)  # type: ignore[misc]
            if child._values is self._values:
                # Ray's are copies of their parent.
                child._values = deque()
        return child

    def append(self, value: float) -> None:
        """Keep a value until the next flush."""
        values = self._values
        values.append(value)
        # Checked after the append, so that a flush in between cannot leave the value behind.
        if len(values) == 1:
            self.buffer.add(self)

    def flush(self) -> None:
        """Record the values."""
        if values := [self._values.popleft() for _ in range(len(self._values))]:
            self._record(values)

    def _record(self, values: Sequence[float]) -> None:
        raise NotImplementedError
