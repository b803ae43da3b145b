"""Detokenize generated tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayllm.batch.rows import Row
from rayllm.batch.stages.prompter import Prompter
from rayllm.config import ModelConfig


class DetokenizeStage:
    """Adds `generated_text` to a row and each of its `choices`, unless the engine has.

    Args:
        model: the model.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._prompter = Prompter(model)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return [self._with_text(row) for row in rows]

    def _with_text(self, row: Row) -> Row:
        if row.get("generated_text") is not None:
            return row
        sampling = row.get("sampling_params") or {}
        text: Row = {"generated_text": self._text(row, sampling)}
        if "choices" in row:
            text["choices"] = [{**choice, "generated_text": self._text(choice, sampling)} for choice in row["choices"]]
        return {**row, **text}

    def _text(self, choice: Row, sampling: Mapping[str, Any]) -> str:
        tokens = choice["generated_tokens"]
        if choice.get("finish_reason") == "stop" and not sampling.get("include_stop_str_in_output"):
            # Without stop strings a token stopped it, which the engine does not include in the text either.
            tokens = tokens[:-1]
        return self._prompter.text(tokens, sampling)
