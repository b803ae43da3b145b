"""Private names of uvicorn."""

from __future__ import annotations

from rayllm.private_names import missing_names
from rayllm.serving.http.uvicorn_server import PRIVATE_NAMES


def test_uvicorn_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []
