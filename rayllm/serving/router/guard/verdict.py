"""Verdicts of guards on texts, and their form for clients."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from rayllm.config import GuardConfig
from rayllm.core.errors import GuardError

# OpenAI's name of each category of a guard; empty without an equivalent.
# Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama-guard-3/
_LLAMA_GUARD = {
    "S1": "violence",
    "S2": "illicit",
    "S3": "sexual",
    "S4": "sexual/minors",
    "S9": "illicit/violent",
    "S10": "hate",
    "S11": "self-harm",
    "S12": "sexual",
    **dict.fromkeys(("S5", "S6", "S7", "S8", "S13", "S14"), ""),
}
# Source: https://github.com/QwenLM/Qwen3Guard
_QWEN3_GUARD = {
    "Violent": "violence",
    "Non-violent Illegal Acts": "illicit",
    "Sexual Content or Sexual Acts": "sexual",
    "Suicide & Self-Harm": "self-harm",
    **dict.fromkeys(("PII", "Unethical Acts", "Politically Sensitive Topics", "Copyright Violation", "Jailbreak"), ""),
}
_CATEGORIES = {"llama_guard": _LLAMA_GUARD, "qwen3_guard": _QWEN3_GUARD}
# Source: https://platform.openai.com/docs/api-reference/moderations/object
_OPENAI = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
_SAFETY = re.compile(r"^\s*Safety:\s*(Safe|Unsafe|Controversial)\b", re.MULTILINE | re.IGNORECASE)
_LISTED = re.compile(r"^\s*Categories:\s*(.*)$", re.MULTILINE | re.IGNORECASE)
_LONGEST_ANSWER = 200
_MAX_CATEGORIES = 50


@dataclass(frozen=True)
class Verdict:
    """Whether a text is refused, and why.

    Attributes:
        categories: categories for which the text is refused.
        scores: number from 0 to 1 for each category that the guard knows.
    """

    is_flagged: bool
    categories: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)

    def __or__(self, other: Self) -> Self:
        """The verdict on two texts together."""
        names = dict.fromkeys((*self.scores, *other.scores))
        scores = {name: max(self.scores.get(name, 0.0), other.scores.get(name, 0.0)) for name in names}
        categories = tuple(dict.fromkeys((*self.categories, *other.categories)))
        return type(self)(self.is_flagged or other.is_flagged, categories, scores)


def of_answer(answer: str, guard: GuardConfig) -> Verdict:
    """Parse the verdict that a guard has written. Raises GuardError if the answer is not a verdict."""
    read = _read_llama_guard if guard.verdict == "llama_guard" else _read_qwen3_guard
    found = read(answer)
    if found is None:
        raise GuardError(f"it answered {answer[:_LONGEST_ANSWER]!r}, which is not a verdict of `{guard.verdict}`")
    is_unsafe, named = found
    blocked = tuple(name for name in named if guard.block is None or name in guard.block)
    scores = dict.fromkeys(_CATEGORIES[guard.verdict], 0.0) | dict.fromkeys(named, 1.0)
    # An answer without a category may have been cut off.
    return Verdict(is_unsafe and (bool(blocked) or not named), blocked if is_unsafe else (), scores)


def of_probabilities(labels: Sequence[str], probabilities: Sequence[float], guard: GuardConfig) -> Verdict:
    """The verdict of a classifier. Raises GuardError if the classifier lacks a label of the configuration."""
    scores = dict(zip(labels, probabilities, strict=False))
    if unknown := [name for name in guard.thresholds if name not in scores]:
        raise GuardError(f"it has no label `{unknown[0]}` (thresholds); its labels are {', '.join(labels)}")
    blocked = tuple(name for name, threshold in guard.thresholds.items() if scores[name] >= threshold)
    return Verdict(bool(blocked), blocked, scores)


def as_moderation(verdict: Verdict, guard: GuardConfig) -> dict[str, object]:
    """OpenAI's moderation object: with OpenAI's categories, and the guard's own.

    Source: https://platform.openai.com/docs/api-reference/moderations/object
    """
    scores = dict.fromkeys(_OPENAI, 0.0)
    flags = dict.fromkeys(_OPENAI, False)
    names = _CATEGORIES.get(guard.verdict, {})
    for name, score in verdict.scores.items():
        for each in (name, names.get(name)):
            if each:
                scores[each] = max(scores.get(each, 0.0), score)
                flags[each] = flags.get(each, False) or name in verdict.categories
    return {
        "flagged": verdict.is_flagged,
        "categories": flags,
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }


def _read_llama_guard(answer: str) -> tuple[bool, list[str]] | None:
    """Whether the text is unsafe, and the categories; None if the answer is not a verdict."""
    first, _, rest = answer.strip().partition("\n")
    if first.strip().lower() not in ("safe", "unsafe"):
        return None
    return (False, []) if first.strip().lower() == "safe" else (True, _names(rest.strip().partition("\n")[0]))


def _read_qwen3_guard(answer: str) -> tuple[bool, list[str]] | None:
    safety, listed = _SAFETY.search(answer), _LISTED.search(answer)
    if safety is None:
        return None
    is_unsafe = safety[1].lower() != "safe"
    return is_unsafe, _names(listed[1]) if is_unsafe and listed else []


def _names(text: str) -> list[str]:
    names = [name.strip()[:100] for name in text.split(",")[:_MAX_CATEGORIES]]
    return [name for name in dict.fromkeys(names) if name and name != "None"]
