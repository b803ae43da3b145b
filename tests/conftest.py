"""Options of the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="write the pages that are made from what the tests find")


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[pytest.MonkeyPatch]:
    """The environment of all tests, the same in each of several test processes, so that they share fork servers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            patch.delenv(name, raising=False)
        # Longer than any time without an engine.
        patch.setenv("RAYLLM_FORK_SERVER_IDLE_S", "300")
        # The clients of all tests run on the same machine. At Ray's default of 15, a client that computes leaves a
        # replica a thirtieth of its own share of the CPU, and the replica answers nothing for seconds.
        patch.setenv("RAY_worker_niceness", "0")
        # A tiny model's first start would compile for most of a minute.
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        yield patch
