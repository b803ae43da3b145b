"""Schema of a guard."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rayllm.config.base import Frozen


class GuardConfig(Frozen):
    """A model served here that is asked whether requests and replies are safe."""

    model: str
    """Id of the guard, one of the models."""
    verdict: Literal["llama_guard", "qwen3_guard", "labels"]
    """How it answers: `llama_guard`, `safe`, or `unsafe` and a line of categories; `qwen3_guard`, `Safety: …` and
    `Categories: …`; `labels`, the probabilities of a classifier."""
    check: tuple[Literal["input", "output"], ...] = ("input",)
    """`input`: requests, before they are sent to a model; `output`: replies, before they are sent to the client. With
    an empty list the guard only answers `/v1/moderations`."""
    models: tuple[str, ...] = ("*",)
    """Models that are checked, with `*` for any text. Guards are not."""
    block: tuple[str, ...] | None = None
    """Categories that are refused, as the guard names them; null is all. Not for `labels`."""
    thresholds: dict[str, float] = {}
    """For `labels`: label → probability from which it is refused. Other labels are safe."""
    window_chars: int = Field(200, ge=1, le=20_000)
    """Characters of a stream that are held back until the guard has been asked about them."""
    question_chars: int = Field(8000, ge=100, le=1_000_000)
    """Most characters in one question to the guard; longer texts are asked about in parts."""
    timeout_s: float = Field(10.0, gt=0, le=600)
    """Seconds for an answer of the guard."""
    on_error: Literal["refuse", "allow"] = "refuse"
    """What happens if the guard fails or takes too long: `refuse` answers 503, `allow` goes on."""

    @model_validator(mode="after")
    def _labels_have_thresholds(self) -> GuardConfig:
        is_classifier = self.verdict == "labels"
        if is_classifier and not self.thresholds:
            raise ValueError("`verdict: labels` needs `thresholds`, such as `{violence: 0.5}`")
        if not is_classifier and self.thresholds:
            raise ValueError(f"`thresholds` are for `verdict: labels`; with `{self.verdict}`, use `block`")
        if is_classifier and self.block is not None:
            raise ValueError("`block` is not for `verdict: labels`; leave labels out of `thresholds`")
        if any(not 0 < threshold <= 1 for threshold in self.thresholds.values()):
            raise ValueError("`thresholds` must be probabilities, above 0 and at most 1")
        if self.question_chars < 2 * self.window_chars:
            raise ValueError(
                "`question_chars` must be at least twice `window_chars`: a window is asked about with the one before"
            )
        return self
