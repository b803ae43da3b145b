"""Private names of uvicorn."""

from __future__ import annotations

from rayllm.serving.http.uvicorn_server import PRIVATE_NAMES
from tests.private_names import missing_names


def test_uvicorn_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []
