"""What a server says of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """A model of `GET /v1/models`; what only vLLM and RayLLM tell is empty elsewhere."""

    id: str
    base: str = ""
    """The model that this adapter belongs to."""
    root: str = ""
    """Where the weights come from, or the model that this name is another one for."""
    context: int | None = None
    """Tokens of the longest sequence."""
    owner: str = ""

    @classmethod
    def read(cls, given: Any) -> ModelCard | None:
        """A card as it came; None where it is none."""
        if not isinstance(given, dict) or not isinstance(given.get("id"), str) or not given["id"].isprintable():
            return None
        context = given.get("max_model_len")
        return cls(
            given["id"],
            str(given.get("parent") or ""),
            str(given.get("root") or ""),
            context if isinstance(context, int) else None,
            str(given.get("owned_by") or ""),
        )

    def kind(self, cards: Sequence[ModelCard]) -> str:
        """What it is in words, among the others of its server."""
        if self.base:
            return f"adapter of {self.base}"
        is_alias = self.root != self.id and any(self.root == other.id for other in cards)
        return f"alias of {self.root}" if is_alias else "model"
