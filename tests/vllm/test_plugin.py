"""What RayLLM's plugin does in vLLM's processes."""

from __future__ import annotations

import logging

import pytest
import torch

from rayllm.engine.vllm.plugin import allow_amx


@pytest.mark.parametrize(
    ("has_tiles", "is_allowed", "warnings"), [(True, True, 0), (True, False, 1), (False, False, 0)]
)
def test_the_kernel_is_asked_for_tiles_that_the_processor_has(
    has_tiles: bool,
    is_allowed: bool,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    def ask() -> bool:
        asked.append(True)
        return is_allowed

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_tiles)
    monkeypatch.setattr(torch.cpu, "_init_amx", ask)
    caplog.set_level(logging.WARNING)
    allow_amx()
    assert len(asked) == has_tiles
    assert len([record for record in caplog.records if "AMX" in record.message]) == warnings
