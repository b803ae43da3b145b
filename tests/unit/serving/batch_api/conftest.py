"""Stores on disk, a settable clock, and frequent checks for cancellation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rayllm.serving.batch_api.execution import lifecycle
from rayllm.serving.batch_api.storage.stores import Stores, open_stores


@dataclass
class Clock:
    """A clock that tests set."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "storage")


@pytest.fixture
def stores(storage: str, clock: Clock) -> Stores:
    return open_stores(storage, clock)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_CHECK_S", 0.01)
    monkeypatch.setattr(lifecycle, "_SAVE_S", 0.0)
