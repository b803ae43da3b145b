"""The stats at the end of a stream that a replica sends by HTTP."""

from __future__ import annotations

import json

from rayllm.request_stats import STATS_COMMENT, RequestStats


class StatsComment:
    """Removes the comment with the request's stats from a stream of server-sent events."""

    def __init__(self) -> None:
        self._held = b""
        # The end of what was passed on; at first, as after a whole event.
        self._last = b"\n\n"

    def strip(self, chunk: bytes) -> bytes:
        """Take the next bytes of the stream; returns those to pass on."""
        data = self._held + chunk
        start = self._comment_start(data)
        passed, self._held = data[:start], data[start:]
        self._last = (self._last + passed)[-2:]
        return passed

    def end(self) -> tuple[RequestStats | None, bytes]:
        """The stats, None if the stream had none, and bytes that were held back but are no such comment."""
        text = self._held.removeprefix(STATS_COMMENT)
        if text == self._held:
            return None, self._held
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        return (RequestStats.of(values) if isinstance(values, dict) else None), b""

    def _comment_start(self, data: bytes) -> int:
        """Where the comment, or what may become it, starts; the length of `data` if nowhere."""
        context = self._last + data
        end_of_event = context.find(b"\n\n" + STATS_COMMENT)
        if end_of_event < 0:
            end_of_event = context.rfind(b"\n\n")
        start = end_of_event + 2 - len(self._last)
        return start if end_of_event >= 0 and _may_be_comment(data[start:]) else len(data)


def _may_be_comment(data: bytes) -> bool:
    return bool(data) and (data.startswith(STATS_COMMENT) or STATS_COMMENT.startswith(data))
