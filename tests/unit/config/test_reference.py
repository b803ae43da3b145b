"""The JSON Schema says what loading does."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from scripts.config_pages import model_schema, reference

VALIDATOR = jsonschema.Draft202012Validator(model_schema())
MODELS = sorted((Path(__file__).parents[3] / "models").glob("*.yaml"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_shipped_models_obey_the_schema(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"model_loading_config": {"model_id": "m"}, "engin_kwargs": {}},
        {"model_loading_config": {"model_id": "m"}, "tensor_parallelism": {"degree": "two"}},
        {"model_loading_config": {"model_id": "m"}, "prompt_format": {"user": "{instruction}", "nope": 1}},
    ],
)
def test_what_loading_refuses_the_schema_refuses(raw: dict[str, object]) -> None:
    assert not VALIDATOR.is_valid(raw)


def test_every_key_is_described() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.rstrip("| ").endswith("`")] == []
