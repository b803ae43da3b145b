"""What guards say, and what it means."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.config import GuardConfig
from rayllm.core.errors import GuardError
from rayllm.serving.router.guard.verdict import as_moderation, of_answer, of_probabilities


def guard(verdict: str, **keys: Any) -> GuardConfig:
    return GuardConfig(model="guard", verdict=verdict, **keys)


@pytest.mark.parametrize(
    ("kind", "answer", "flagged", "categories"),
    [
        ("llama_guard", "safe", False, ()),
        ("llama_guard", "\n\nSafe", False, ()),
        ("llama_guard", "\n\nunsafe\nS1,S9", True, ("S1", "S9")),
        ("llama_guard", "unsafe\nS1, S1\n", True, ("S1",)),
        ("llama_guard", "unsafe", True, ()),
        ("qwen3_guard", "Safety: Safe\nCategories: None", False, ()),
        ("qwen3_guard", "Safety: Unsafe\nCategories: Violent, PII", True, ("Violent", "PII")),
        ("qwen3_guard", "Safety: Controversial\nCategories: Jailbreak", True, ("Jailbreak",)),
        ("qwen3_guard", "<think>\n</think>\nSafety: Unsafe\nCategories: Violent\nRefusal: No", True, ("Violent",)),
    ],
)
def test_answers_are_verdicts(kind: str, answer: str, flagged: bool, categories: tuple[str, ...]) -> None:
    verdict = of_answer(answer, guard(kind))
    assert (verdict.is_flagged, verdict.categories) == (flagged, categories)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("llama_guard", ""),
        ("llama_guard", "safer"),
        ("llama_guard", "I would say it is safe"),
        ("qwen3_guard", "safe"),
        ("qwen3_guard", "Safety: Unknown"),
    ],
)
def test_other_answers_are_errors(kind: str, answer: str) -> None:
    with pytest.raises(GuardError, match="not a verdict of"):
        of_answer(answer, guard(kind))


def test_only_the_named_categories_are_refused() -> None:
    strict = guard("llama_guard", block=["S1"])
    assert not of_answer("unsafe\nS9", strict).is_flagged
    assert of_answer("unsafe\nS9,S1", strict).categories == ("S1",)
    # It may have been cut off.
    assert of_answer("unsafe", strict).is_flagged


def test_labels_are_refused_from_their_thresholds_on() -> None:
    labels, config = ["safe", "violence", "spam"], guard("labels", thresholds={"violence": 0.5, "spam": 0.9})
    assert of_probabilities(labels, [0.1, 0.5, 0.4], config).categories == ("violence",)
    assert not of_probabilities(labels, [0.2, 0.4, 0.4], config).is_flagged
    with pytest.raises(GuardError, match=r"no label `spam` .*its labels are safe, violence"):
        of_probabilities(["safe", "violence"], [1, 0], config)


def test_verdicts_on_parts_are_joined() -> None:
    config = guard("llama_guard")
    verdict = of_answer("safe", config) | of_answer("unsafe\nS1", config) | of_answer("unsafe\nS1,S2", config)
    assert (verdict.is_flagged, verdict.categories, verdict.scores["S1"]) == (True, ("S1", "S2"), 1)


def test_a_moderation_has_openais_categories_and_the_guards_own() -> None:
    config = guard("llama_guard")
    made: Any = as_moderation(of_answer("unsafe\nS9,S13", config), config)
    flagged = {name for name, is_flagged in made["categories"].items() if is_flagged}
    assert (made["flagged"], flagged) == (True, {"illicit/violent", "S9", "S13"})
    assert made["category_scores"]["S9"] == made["category_scores"]["illicit/violent"] == 1
    assert made["category_scores"].keys() == made["categories"].keys() == made["category_applied_input_types"].keys()
    assert {"harassment/threatening", "self-harm/intent", "violence/graphic", "S1"} <= made["categories"].keys()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"verdict": "labels"}, "needs `thresholds`"),
        ({"verdict": "llama_guard", "thresholds": {"x": 0.5}}, "with `llama_guard`, use `block`"),
        ({"verdict": "labels", "thresholds": {"x": 0.5}, "block": ["x"]}, "leave labels out"),
        ({"verdict": "labels", "thresholds": {"x": 0}}, "must be probabilities"),
        ({"verdict": "llama_guard", "question_chars": 100}, "at least twice `window_chars`"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GuardConfig(model="guard", **keys)
