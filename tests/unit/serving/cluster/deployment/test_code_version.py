"""The digest of RayLLM's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.serving.cluster.deployment import code_version


def test_the_digest_covers_the_whole_package(monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[list[list[str]]] = []

    def record(value: list[list[str]]) -> str:
        digested.append(value)
        return ""

    monkeypatch.setattr(code_version, "_digest", record)
    code_version.source_digest.__wrapped__()
    files = {Path(name) for name, _ in digested[0]}
    assert {Path("core/errors.py"), Path("engine/server.py"), Path("config/data/vllm/0.29.json")} <= files
