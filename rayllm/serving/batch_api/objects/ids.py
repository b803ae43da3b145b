"""Names of files and batches: nobody guesses them, and they sort by the time of their making."""

from __future__ import annotations

import re
import secrets
import time

FILE = "file-"
BATCH = "batch_"


def new_id(prefix: str) -> str:
    """A name that nothing else has: the time in milliseconds, then 80 random bits."""
    return f"{prefix}{time.time_ns() // 10**6:012x}{secrets.token_hex(10)}"


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` has the form of such a name; anything else must never become a part of a path."""
    return re.fullmatch(f"{prefix}[0-9a-f]{{32}}", text) is not None


def made_at(name: str) -> float:
    """When a name was made, in seconds since the epoch."""
    return int(name[-32:-20], 16) / 1000
