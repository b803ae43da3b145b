"""Private names of vLLM."""

from __future__ import annotations

from rayllm.engine.vllm.private_names import PRIVATE_NAMES
from rayllm.private_names import missing_names


def test_vllm_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []
