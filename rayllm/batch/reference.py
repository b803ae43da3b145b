"""The configuration of processors, described from its own classes: the tables in docs/batch.md."""

from __future__ import annotations

from collections.abc import Iterator

from rayllm.batch.config import (
    Checkpoint,
    HTTPRequestProcessorConfig,
    ProcessorConfig,
    RequestProcessorConfig,
    VLLMProcessorConfig,
)
from rayllm.config.reference import fields_table


def reference() -> str:
    """A table for each class; what all have stands once."""
    return "\n".join(_tables())


def _tables() -> Iterator[str]:
    yield _table(ProcessorConfig, "Every processor")
    for kind in (VLLMProcessorConfig, RequestProcessorConfig, HTTPRequestProcessorConfig, Checkpoint):
        yield _table(kind, f"`{kind.__name__}`")


def _table(kind: type[ProcessorConfig] | type[Checkpoint], title: str) -> str:
    shared = () if kind is ProcessorConfig else ProcessorConfig.model_fields
    own = {name: field for name, field in kind.model_fields.items() if name not in shared}
    return f"### {title}\n\n{(kind.__doc__ or '').splitlines()[0]}\n\n{fields_table(own)}\n"
