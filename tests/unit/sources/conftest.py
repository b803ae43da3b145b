"""Every test of this folder has a cache of its own, and small parts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _of_this_test(small: None, cache_folder: Path) -> None:
    """Asks for both."""
