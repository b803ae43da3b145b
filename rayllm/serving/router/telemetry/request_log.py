"""A log with one line of JSON for each request."""

from __future__ import annotations

import json
import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rayllm.serving.router.requests.record import RequestRecord

_MAX_BYTES, _BACKUPS = 100_000_000, 5


class RequestLog:
    """Writes to a file that is rotated."""

    def __init__(self, file: Path) -> None:
        self._handler = RotatingFileHandler(file, maxBytes=_MAX_BYTES, backupCount=_BACKUPS, delay=True)

    def write(self, record: RequestRecord) -> None:
        """Append a request that has ended. Its prompt and its answer are not in the log."""
        line = json.dumps(record.as_json())
        self._handler.handle(logging.LogRecord("rayllm.requests", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()
