"""Render messages to prompts."""

from __future__ import annotations

from rayllm.batch.rows import Row, failed
from rayllm.batch.stages.prompter import Prompter
from rayllm.config import ModelConfig


class ChatTemplateStage:
    """Adds `prompt` to rows with `messages`.

    Args:
        model: the model.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._prompter = Prompter(model)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return [self._rendered(row) for row in rows]

    def _rendered(self, row: Row) -> Row:
        if row.get("messages") is None:
            return row
        try:
            return {**row, "prompt": self._prompter.prompt(row), "is_rendered": True}
        except Exception as error:  # templates are programs, and may raise anything
            return failed(row, error)
