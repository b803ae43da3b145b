"""The upgrade alarm: every private name of vLLM that is leaned on exists in the installed one."""

from __future__ import annotations

from rayllm.engine.vllm import missing_names


def test_vllm_has_every_name_that_is_used() -> None:
    assert missing_names() == []
