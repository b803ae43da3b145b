"""Expand `${env:NAME}` references to environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rayllm.core.errors import ConfigError

REFERENCE = re.compile(r"\$\{env:([A-Za-z_]\w*)\}")


def expand(value: Any, environment: Mapping[str, str], where: str) -> Any:
    """Replace every `${env:NAME}` in the strings of a nested value, whose key is `where`.

    Raises:
        ConfigError: a variable is not set.
    """
    if isinstance(value, str):
        return REFERENCE.sub(lambda match: _read(match[1], environment, where), value)
    if isinstance(value, dict):
        return {key: expand(item, environment, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item, environment, f"{where}.{index}") for index, item in enumerate(value)]
    return value


def _read(name: str, environment: Mapping[str, str], where: str) -> str:
    if name not in environment:
        raise ConfigError(f"{where}: the environment variable `{name}` is not set; export it before you deploy.")
    return environment[name]
