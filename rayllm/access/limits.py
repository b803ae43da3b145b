"""Limits of a key."""

from collections.abc import Mapping
from typing import Literal

Kind = Literal["requests", "tokens", "tokens_per_day", "concurrent"]
"""What a limit counts: requests or tokens a minute, tokens a day, or requests in progress."""
Amounts = Mapping[Kind, int]

_MINUTE_S, _DAY_S = 60.0, 86400.0
WINDOWS_S: dict[Kind, float] = {"requests": _MINUTE_S, "tokens": _MINUTE_S, "tokens_per_day": _DAY_S}
"""Length of the window in which each kind is counted."""

UNITS: dict[Kind, str] = {
    "requests": "requests a minute",
    "tokens": "tokens a minute",
    "tokens_per_day": "tokens a day",
    "concurrent": "requests at once",
}
"""Unit of each limit, for messages."""
FIELDS: dict[Kind, str] = {
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "tokens_per_day": "tokens_per_day",
    "concurrent": "max_concurrent",
}
"""Configuration field of each limit, of a key or an issuer."""


def limits_of(configured: object) -> dict[Kind, int]:
    return {kind: limit for kind, name in FIELDS.items() if (limit := getattr(configured, name)) is not None}
