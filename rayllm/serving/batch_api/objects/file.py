"""OpenAI's file object."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

CLIENTS_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""Purposes that clients may give a file; only `batch` has an effect."""


class File(BaseModel):
    """OpenAI's file object, with the tenant that owns it; "" is none.

    Source: https://platform.openai.com/docs/api-reference/files/object
    """

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None
    tenant: str = ""

    def public(self) -> dict[str, Any]:
        """The file object for clients."""
        return self.model_dump(mode="json", exclude={"tenant"})
