"""A prompt for an engine that is called without HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """Text or token ids, with images. `is_rendered` marks text whose template has written the special tokens."""

    text: str = ""
    token_ids: list[int] | None = None
    images: list[Any] = field(default_factory=list)
    is_rendered: bool = False
