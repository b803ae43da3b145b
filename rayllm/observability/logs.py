"""Log lines of RayLLM's own processes."""

from __future__ import annotations

import logging


def set_up_logging(level: str) -> None:
    """Send this package's log lines to the handlers that Ray Serve has put on its own logger."""
    ours, serve = logging.getLogger("rayllm"), logging.getLogger("ray.serve")
    ours.setLevel(level)
    ours.handlers = list(serve.handlers)
    ours.propagate = not ours.handlers
