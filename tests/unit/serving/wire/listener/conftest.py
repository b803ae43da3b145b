"""Patience with a busy machine, and no keeper left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rayllm.serving.wire.listener import listener
from tests.fakes.listener import forget_ports, keepers


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patience for a busy machine, and no keeper left behind."""
    monkeypatch.setattr(listener, "_JOIN_S", 60)
    forget_ports()
    yield
    for process in keepers():
        process.kill()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that is in use is an error at once."""
    monkeypatch.setattr(listener, "_JOIN_S", 0)
