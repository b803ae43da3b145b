"""Stages between texts and tokens: chat templates, tokenization and detokenization."""

from collections.abc import Mapping
from typing import Any

from rayllm.batch.rows import Row, failed
from rayllm.batch.stages.prompter import Prompter
from rayllm.config import ModelConfig
from rayllm.core.errors import RequestError


class _TextStage:
    def __init__(self, model: ModelConfig) -> None:
        self._prompter = Prompter(model)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return [self._processed(row) for row in rows]

    def _processed(self, row: Row) -> Row:
        raise NotImplementedError


class ChatTemplateStage(_TextStage):
    """Adds `prompt` to rows with `messages`."""

    def _processed(self, row: Row) -> Row:
        if row.get("messages") is None:
            return row
        try:
            return {**row, "prompt": self._prompter.prompt(row), "is_rendered": True}
        except Exception as error:  # templates are programs, and may raise anything
            return failed(row, error)


class TokenizeStage(_TextStage):
    """Adds `prompt_token_ids` to rows with a `prompt`. The engine itself expands prompts with images."""

    def _processed(self, row: Row) -> Row:
        if row.get("prompt_token_ids") is not None or row.get("prompt") is None or row.get("images"):
            return row
        if not isinstance(row["prompt"], str):
            return failed(row, RequestError(f"`prompt` must be a text, not {type(row['prompt']).__name__}."))
        try:
            return {**row, "prompt_token_ids": self._prompter.tokens(row)}
        except Exception as error:
            return failed(row, error)


class DetokenizeStage(_TextStage):
    """Adds `generated_text` to a row and each of its `choices`, unless the engine has."""

    def _processed(self, row: Row) -> Row:
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
