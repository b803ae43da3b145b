"""Validated access to the numbers of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayllm.errors import ConfigError


class Fields:
    """The values of a configuration.

    Args:
        values: by key.
        spellings: the keys of this family, by their usual name.
    """

    def __init__(self, values: Mapping[str, Any], spellings: Mapping[str, str] | None = None) -> None:
        self.values = values
        self._spellings = spellings or {}

    def optional(self, name: str) -> int | None:
        """The number at a key; None if it is missing.

        Raises:
            ConfigError: it is no non-negative integer.
        """
        name = self._spellings.get(name, name)
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"config.json: {name}: {value!r} is no non-negative integer.")
        return value

    def required(self, name: str) -> int:
        """The number at a key that the model's size depends on.

        Raises:
            ConfigError: it is missing, or no positive integer.
        """
        value = self.optional(name)
        if not value:
            name = self._spellings.get(name, name)
            raise ConfigError(f"config.json: {name} is missing, so the model's size cannot be computed.")
        return value

    def attention(self) -> tuple[int, int]:
        """Number of key-value heads, and the size of one."""
        heads = self.required("num_attention_heads")
        return self.optional("num_key_value_heads") or heads, self.optional("head_dim") or self.required(
            "hidden_size"
        ) // heads
