"""A file that is kept here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

CLIENTS_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""What a client may say that a file is for; `batch` alone has a meaning here."""


class File(BaseModel):
    """OpenAI's file object. Source: https://platform.openai.com/docs/api-reference/files/object"""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None
