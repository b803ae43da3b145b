"""Tests that need vLLM's own modules, but neither Ray nor a running service."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rayllm.engine.process.forking import ForkContext
from rayllm.engine.vllm.engine import cpu_fork_context


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """List what vLLM leaves open, but fail unit tests only."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session", autouse=True)
def fork_context(environment: pytest.MonkeyPatch) -> ForkContext:
    """The context of engines' processes. Its server imports vLLM while the first tests run."""
    # As for RayLLM's engines. PyTorch reads it while vLLM is imported.
    environment.setenv("TORCHDYNAMO_DISABLE", "1")
    context = cpu_fork_context()
    assert context is not None
    return context


@pytest.fixture(scope="session")
def run_forked(fork_context: ForkContext) -> Callable[..., Any]:
    """Runs a function in a process of its own, since vLLM keeps its state in the process."""

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        receiver, sender = fork_context.Pipe(duplex=False)
        process = fork_context.Process(target=_send_result, args=(sender, function, *arguments))
        process.start()
        sender.close()
        try:
            return receiver.recv()
        except EOFError:
            pytest.fail("The process failed; its output says why.")
        finally:
            process.kill()
            process.join()

    return run


def _send_result(sender: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    sender.send(function(*arguments))
