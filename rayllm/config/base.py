"""Base class of the configuration schemas."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable schema that refuses unknown keys. Subclasses do no I/O and take no defaults from the machine."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), hide_input_in_errors=True
    )
