"""Ids of files and batches: unguessable, and sorted by time of creation."""

from __future__ import annotations

import re
import secrets
import time

FILE = "file-"
BATCH = "batch_"


def new_id(prefix: str) -> str:
    """A unique id: the time in milliseconds, then 80 random bits."""
    return f"{prefix}{time.time_ns() // 10**6:012x}{secrets.token_hex(10)}"


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` is such an id; anything else must never become part of a path."""
    return re.fullmatch(f"{prefix}[0-9a-f]{{32}}", text) is not None


def created_at(name: str) -> float:
    """When an id was created, in seconds since the epoch."""
    return int(name[-32:-20], 16) / 1000
