"""Logging of RayLLM's own processes."""

import atexit
import logging
import re
from collections.abc import Sequence
from logging.handlers import MemoryHandler
from pathlib import Path

# Loggers that write to Ray Serve's log files: this package's, and those of the embedded HTTP server.
_LOGGERS = ("rayllm", "uvicorn")
# Control characters, and what separates lines or changes the direction of text.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def set_up_logging(level: str) -> None:
    """Route this package's loggers to Ray Serve's handlers, and keep the handlers open."""
    handlers = logging.getLogger("ray.serve").handlers
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = list(handlers)
        logger.propagate = not handlers
    logging.getLogger("rayllm").setLevel(level)
    _keep_open(handlers)


def log_folder() -> Path | None:
    """The folder of Ray Serve's log files; None without files."""
    handlers = _with_targets(logging.getLogger("ray.serve").handlers)
    files = (handler.baseFilename for handler in handlers if isinstance(handler, logging.FileHandler))
    return next((Path(file).parent for file in files), None)


def _keep_open(handlers: Sequence[logging.Handler]) -> None:
    """Protect handlers from `logging.config.dictConfig`, which closes every handler that the logging module lists.

    vLLM calls it at import, and plugins may. A closed handler of Ray Serve's loses log lines, keeps every record in
    memory, and fails the call by which a restarted controller finds its replicas.
    """
    kept = {id(handler) for handler in _with_targets(handlers)}
    listed: list[logging.Handler] = [ref() for ref in logging._handlerList]  # type: ignore[attr-defined]
    protected = [ref for ref, handler in zip(logging._handlerList, listed, strict=True) if id(handler) in kept]  # type: ignore[attr-defined]
    for ref in protected:
        logging._handlerList.remove(ref)  # type: ignore[attr-defined]
    if protected:
        atexit.register(logging.shutdown, protected)


def _with_targets(handlers: Sequence[logging.Handler]) -> list[logging.Handler]:
    targets = [handler.target for handler in handlers if isinstance(handler, MemoryHandler)]
    return [*handlers, *(target for target in targets if target is not None)]


def printable(text: str, most: int | None = 500) -> str:
    """A client's text for one log line: what breaks or turns lines escaped, at most `most` characters."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text[:most])
