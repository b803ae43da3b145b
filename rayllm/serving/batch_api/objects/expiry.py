"""Expiry of files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_HOUR_S, _DAY_S = 3600, 86400


class Expiry(BaseModel):
    """`expires_after` of a file. Source: https://platform.openai.com/docs/api-reference/files/create"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    anchor: Literal["created_at"]
    seconds: int = Field(ge=_HOUR_S, le=30 * _DAY_S)
