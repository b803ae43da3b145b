"""What an engine reads, where it is called without HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """What the engine reads: token ids, or a text. `is_rendered` marks one whose template wrote its special tokens."""

    text: str = ""
    token_ids: list[int] | None = None
    images: list[Any] = field(default_factory=list)
    is_rendered: bool = False
