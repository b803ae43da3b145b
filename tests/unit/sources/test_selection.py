"""Which of two sets of weights is selected, when a model also has one in Mistral's own format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayllm.core.errors import ConfigError
from rayllm.sources.selection import config_path, find_weights, mistral_priority, select_files

OTHERS = ["config.json", "params.json", "tekken.json", "tokenizer.json"]
USUAL = ["model-1.safetensors", "model.safetensors.index.json"]
MISTRAL = ["consolidated-1.safetensors", "consolidated.safetensors.index.json"]
LOADS_MISTRAL = {"load_format": "mistral"}


def selected(paths: list[str], arguments: dict[str, Any] | None, in_place: bool = False) -> set[str]:
    return set(select_files(paths, "s3://b", False, True, mistral_priority(arguments, in_place)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, USUAL),
        ({"load_format": "auto", "tokenizer_mode": "mistral"}, USUAL),
        ({"load_format": "safetensors", "config_format": "mistral"}, USUAL),
        (LOADS_MISTRAL, MISTRAL),
        ({"load_format": "MISTRAL", "config_format": "hf"}, MISTRAL),
        ({"config_format": "mistral"}, MISTRAL),
    ],
)
def test_one_set_is_downloaded_with_its_index(arguments: dict[str, Any] | None, expected: list[str]) -> None:
    assert selected([*OTHERS, *USUAL, *MISTRAL], arguments) == {*OTHERS, *expected}


@pytest.mark.parametrize("arguments", [None, {"load_format": "hf"}, LOADS_MISTRAL])
def test_the_only_set_is_downloaded(arguments: dict[str, Any] | None) -> None:
    assert selected([*OTHERS, *MISTRAL], arguments) == {*OTHERS, *MISTRAL}


def test_other_weights_do_not_replace_those_of_the_format() -> None:
    assert selected([*OTHERS, *USUAL], {"config_format": "mistral"}) == {*OTHERS, *USUAL}
    with pytest.raises(ConfigError, match=r"s3://b holds no consolidated\*\.safetensors file"):
        selected([*OTHERS, *USUAL, "consolidated.00.pth"], LOADS_MISTRAL)


def test_a_tokenizer_is_the_same_for_all_formats() -> None:
    for priority in (mistral_priority(None, False), mistral_priority(LOADS_MISTRAL, False)):
        files = select_files([*OTHERS, *USUAL, *MISTRAL], "s3://b", False, False, priority)
        assert set(files) == {*OTHERS, "model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({}, "consolidated"), (LOADS_MISTRAL, "consolidated"), ({"load_format": "safetensors"}, "model")],
)
def test_of_a_folder_vllm_prefers_mistral_s_format(tmp_path: Path, arguments: dict[str, Any], name: str) -> None:
    for path in [*OTHERS, "model-1.safetensors", "consolidated-1.safetensors"]:
        (tmp_path / path).touch()
    assert [path.name for path in find_weights(tmp_path, False, "m", arguments)] == [f"{name}-1.safetensors"]


def test_the_index_of_the_selected_weights_is_checked(tmp_path: Path) -> None:
    for path in ("config.json", "model-1.safetensors", "consolidated-1.safetensors"):
        (tmp_path / path).touch()
    (tmp_path / MISTRAL[1]).write_text('{"weight_map": {"norm.weight": "consolidated-2.safetensors"}}')
    with pytest.raises(ConfigError, match=r"consolidated\.safetensors\.index\.json names consolidated-2"):
        find_weights(tmp_path, False, "m", LOADS_MISTRAL)
    assert find_weights(tmp_path, False, "m", {"load_format": "safetensors"})


@pytest.mark.parametrize(
    ("arguments", "weights", "expected"),
    [
        ({}, "consolidated-1.safetensors", "params.json"),
        ({}, "model-1.safetensors", "config.json"),
        ({"config_format": "mistral"}, "model-1.safetensors", "params.json"),
        ({"config_format": "hf"}, "consolidated-1.safetensors", "config.json"),
    ],
)
def test_the_file_of_the_configuration(arguments: dict[str, Any], weights: str, expected: str) -> None:
    assert config_path(OTHERS, [weights], arguments) == expected
    assert config_path(["config.json"], ["consolidated-1.safetensors"], {}) == "config.json"
