"""Names of adapters, and the folders they lie in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayllm.errors import RequestError
from rayllm.lora import AdapterFolder, AdapterName, parse_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("org/a:x", AdapterName("org/a", "x")),
        ("q:7b:x", AdapterName("q:7b", "x")),
        ("q:7b", AdapterName("q", "7b")),
        ("org/a", None),
        ("other:x", None),
        ("org/a:", None),
        ("org/a:x/y", None),
        ("org/a:..", None),
        ("org/a:x..y", None),
        ("org/a:.x", None),
        ("org/a:x\n", None),
        ("org/a:x\x00", None),
        ("org/a:" + "x" * 129, None),
    ],
)
def test_the_longest_base_decides_and_bad_names_mean_nothing(name: str, meant: AdapterName | None) -> None:
    assert parse_name(name, ["org/a", "q", "q:7b"]) == meant


def adapter(folder: Path, config: str = '{"r": 8}', weights: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(config)
    if weights:
        (folder / "adapter_model.safetensors").touch()
    return folder


def test_both_layouts_are_found_and_listed(tmp_path: Path) -> None:
    short, full = adapter(tmp_path / "x"), adapter(tmp_path / "org" / "a:y")
    adapter(tmp_path / "org" / "b:z")
    folder = AdapterFolder(tmp_path, "org/a")
    assert folder.find(AdapterName("org/a", "x")) == short
    assert folder.find(AdapterName("org/a", "y")) == full
    assert folder.find(AdapterName("org/a", "z")) is None
    assert [str(name) for name in folder.names()] == ["org/a:x", "org/a:y"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert AdapterFolder(tmp_path / "none", "m").names() == []


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    adapter(tmp_path / "outside")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x").symlink_to(tmp_path / "outside")
    assert AdapterFolder(tmp_path / "root", "m").find(AdapterName("m", "x")) is None


@pytest.mark.parametrize(
    ("config", "weights", "said"),
    [
        ("{", True, "adapter_config.json"),
        ("[]", True, "adapter_config.json"),
        (json.dumps({"r": 0}), True, "no valid rank"),
        (json.dumps({"r": 8}), False, "no adapter_model.safetensors"),
    ],
)
def test_a_broken_adapter_names_the_file(tmp_path: Path, config: str, weights: bool, said: str) -> None:
    name = AdapterName("m", "x")
    folder = adapter(tmp_path / "x", config, weights)
    with pytest.raises(RequestError, match=said) as caught:
        AdapterFolder(tmp_path, "m").check(name, folder)
    assert (caught.value.status, caught.value.param) == (400, "model")
    assert str(tmp_path) not in caught.value.message
