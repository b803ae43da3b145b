"""`rayllm catalog`: every model file, by the id of its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayllm.cli.commands.catalog import command
from rayllm.config import load_model
from rayllm.core.errors import ConfigError

MODELS = Path(__file__).parents[4] / "models"


def catalog(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_it_lists_every_file_once() -> None:
    listed = json.loads(catalog("--json"))
    files = [Path(one["file"]) for one in listed]
    assert sorted(files) == sorted([*MODELS.glob("*.yaml"), *MODELS.glob("older/*.yaml")])
    assert all(load_model(one["file"]).model_id == one["model"] for one in listed)
    assert [line.split() for line in catalog().splitlines()[1:]] == [[one["model"], one["file"]] for one in listed]


def test_it_prints_the_path_of_one() -> None:
    assert catalog("rayllm-demo") == f"{MODELS / 'rayllm-demo.yaml'}\n"
    assert json.loads(catalog("Qwen/Qwen3-8B", "--json")) == [
        {"model": "Qwen/Qwen3-8B", "file": str(MODELS / "Qwen--Qwen3-8B.yaml")}
    ]


@pytest.mark.parametrize(
    ("model", "hint"), [("Qwen/Qwen3-8", "mean `Qwen/Qwen3-"), ("nobody/knows-this", "`rayllm catalog` lists them")]
)
def test_others_are_an_error_with_a_hint(model: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="not in the catalog") as caught:
        catalog(model)
    assert hint in caught.value.message
