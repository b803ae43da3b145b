"""Tokenize prompts."""

from __future__ import annotations

from rayllm.batch.rows import Row, failed
from rayllm.batch.stages.prompter import Prompter
from rayllm.config import ModelConfig
from rayllm.errors import RequestError


class TokenizeStage:
    """Adds `prompt_token_ids` to rows with a `prompt`. Prompts with images are left to the engine, which expands them.

    Args:
        model: the model.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._prompter = Prompter(model)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return [self._tokenized(row) for row in rows]

    def _tokenized(self, row: Row) -> Row:
        if row.get("prompt_token_ids") is not None or row.get("prompt") is None or row.get("images"):
            return row
        if not isinstance(row["prompt"], str):
            return failed(row, RequestError(f"`prompt` must be a text, not {type(row['prompt']).__name__}."))
        try:
            return {**row, "prompt_token_ids": self._prompter.tokens(row)}
        except Exception as error:
            return failed(row, error)
