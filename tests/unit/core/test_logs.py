"""Ray Serve's log handlers stay open, whatever configures logging later in the process."""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Iterator
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

import pytest
import uvicorn

from rayllm.core.logs import set_up_logging


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    """A handler on Serve's logger as Serve makes it, in its place for the test."""
    names = ("ray.serve", "rayllm", "uvicorn")
    before = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).propagate) for name in names}
    file = RotatingFileHandler(tmp_path / "replica.log")
    memory = MemoryHandler(1, flushLevel=logging.ERROR, target=file)
    logging.getLogger("ray.serve").handlers = [memory]
    yield tmp_path / "replica.log"
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate
    memory.close()
    file.close()


async def nothing(scope: object, receive: object, send: object) -> None: ...


@pytest.mark.parametrize(
    "configure",
    [
        lambda: logging.config.dictConfig({"version": 1, "disable_existing_loggers": False}),
        lambda: uvicorn.Config(nothing),
    ],
    ids=["dictConfig, as vLLM calls it", "uvicorn's own"],
)
def test_log_files_are_complete_after_somebody_configures_logging(log_file: Path, configure: object) -> None:
    set_up_logging("INFO")
    assert callable(configure)
    configure()
    logging.getLogger("rayllm.router").info("a line of ours")
    logging.getLogger("ray.serve").warning("a line of Serve's")
    [memory] = [one for one in logging.getLogger("ray.serve").handlers if isinstance(one, MemoryHandler)]
    assert isinstance(memory.target, RotatingFileHandler), "a restarted controller asks for the file's name"
    assert memory.buffer == [], "records pile up in memory"
    assert log_file.read_text() == "a line of ours\na line of Serve's\n"


def test_setting_up_twice_writes_each_line_once(log_file: Path) -> None:
    set_up_logging("INFO")
    set_up_logging("INFO")
    logging.getLogger("rayllm").info("once")
    assert log_file.read_text() == "once\n"
