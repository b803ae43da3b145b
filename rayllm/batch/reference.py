"""Generate the tables of processor options in docs/batch.md."""

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
    """A table per configuration class, shared options first."""
    return "\n".join(_tables())


def _tables() -> Iterator[str]:
    yield _table(ProcessorConfig, "Every processor")
    for config in (VLLMProcessorConfig, RequestProcessorConfig, HTTPRequestProcessorConfig, Checkpoint):
        yield _table(config, f"`{config.__name__}`")


def _table(config: type[ProcessorConfig] | type[Checkpoint], title: str) -> str:
    shared = () if config is ProcessorConfig else ProcessorConfig.model_fields
    own = {name: field for name, field in config.model_fields.items() if name not in shared and not field.exclude}
    return f"### {title}\n\n{(config.__doc__ or '').splitlines()[0]}\n\n{fields_table(own)}\n"
