"""Entries of a server's list of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """A model of `GET /v1/models`. Only vLLM and RayLLM send all fields."""

    id: str
    base: str = ""
    """Base model of an adapter."""
    root: str = ""
    """Source of the weights, or the model that an alias stands for."""
    context: int | None = None
    """Length of the longest sequence, in tokens."""
    owner: str = ""

    @classmethod
    def parse(cls, entry: Any) -> ModelCard | None:
        """Parse an entry; None if it is invalid."""
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"].isprintable():
            return None
        context = entry.get("max_model_len")
        return cls(
            entry["id"],
            str(entry.get("parent") or ""),
            str(entry.get("root") or ""),
            context if isinstance(context, int) else None,
            str(entry.get("owned_by") or ""),
        )

    def kind(self, cards: Sequence[ModelCard]) -> str:
        """Model, alias or adapter, given all cards of its server."""
        if self.base:
            return f"adapter of {self.base}"
        is_alias = self.root != self.id and any(self.root == other.id for other in cards)
        return f"alias of {self.root}" if is_alias else "model"
