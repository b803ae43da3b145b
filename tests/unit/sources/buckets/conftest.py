"""Every test in this folder has its own cache, and downloads in small parts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _isolated_cache(small: None, cache_folder: Path) -> None:
    """Request both fixtures."""
