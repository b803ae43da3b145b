"""Messages between a router and the process of its hooks: a JSON object, and bytes that stay as they are."""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTHS = struct.Struct("!II")
"""Begins a message: lengths of the object and of the bytes."""


def message(head: dict[str, Any], body: bytes = b"") -> bytes:
    """A message."""
    encoded = json.dumps(head).encode()
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body
