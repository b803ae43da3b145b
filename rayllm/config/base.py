"""What all configuration classes share: frozen, closed, documented."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A part of a configuration. It says; it does not do: no I/O, no defaults from the machine."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), hide_input_in_errors=True
    )
