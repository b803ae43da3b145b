"""The architectures of 2025 and 2026 on tiny random checkpoints, in vLLM's engine alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.vllm import architectures


@pytest.fixture(scope="module")
def answers(run_forked: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each architecture answers."""
    found: dict[str, dict[str, Any]] = run_forked(architectures.answers, tmp_path_factory.mktemp("architectures"))
    errors = {name: answer["error"] for name, answer in found.items() if "error" in answer}
    assert not errors
    return found


@pytest.mark.parametrize("name", architectures.SHAPES)
def test_the_engine_answers_with_as_many_tokens_as_asked(answers: dict[str, dict[str, Any]], name: str) -> None:
    assert answers[name]["tokens"] == [architectures.TOKENS, architectures.TOKENS]


@pytest.mark.parametrize("name", architectures.SHAPES)
def test_the_engine_computes_what_transformers_does(answers: dict[str, dict[str, Any]], name: str) -> None:
    """Models that do not agree at all differ by 1.4."""
    found = architectures.disagreement(answers[name]["logprobs"], answers[name]["expected"])
    assert found < architectures.MAX_DISAGREEMENT
