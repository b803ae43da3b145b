"""The tables of docs/batch.md."""

from __future__ import annotations

import pytest

from rayllm.batch import config
from scripts.config_pages import batch_reference as reference

KINDS = [
    config.ProcessorConfig,
    config.VLLMProcessorConfig,
    config.RequestProcessorConfig,
    config.HTTPRequestProcessorConfig,
    config.Checkpoint,
]


def test_every_key_is_described() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 25
    assert [row for row in rows if row.rstrip("| ").endswith("`")] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_of_every_class_is_there(kind: type[config.ProcessorConfig]) -> None:
    page = reference()
    keys = [name for name, field in kind.model_fields.items() if not field.exclude]
    assert [name for name in keys if f"| `{name}` |" not in page] == []


def test_what_all_have_stands_once() -> None:
    assert reference().count("| `batch_size` |") == 1
