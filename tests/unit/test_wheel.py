"""What an installed RayLLM has, and what its source distribution does."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from rayllm.core.bundled import bundled_folder, demo_file
from rayllm.core.errors import ConfigError
from tests.wheel import ROOT, build_wheel

MAX_BYTES = 12_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def tracked(*paths: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def test_it_holds_the_catalog_and_the_demo(names: set[str]) -> None:
    models = {name for name in names if name.startswith("rayllm/data/models/")}
    assert models == {f"rayllm/data/{name}" for name in tracked("models") if not name.endswith(".py")}
    assert {"rayllm/data/models/rayllm-demo/weights/model.safetensors", "rayllm/data/serve_configs/demo.yaml"} <= names


def test_it_holds_what_routers_serve(names: set[str]) -> None:
    assert {"rayllm/serving/router/ui/static/index.html", "rayllm/serving/router/openapi.json"} <= names
    assert not [name for name in names if name.startswith("rayllm/serving/router/ui/source/")]


def test_it_holds_nothing_else(wheel: Path, names: set[str]) -> None:
    top = {name.split("/")[0] for name in names}
    stem = wheel.name.removesuffix("-py3-none-any.whl")
    assert top == {"rayllm", f"{stem}.dist-info", f"{stem}.data"}
    assert [name for name in names if ".data/" in name] == [f"{stem}.data/data/share/man/man1/rayllm.1"]
    assert not [name for name in names if name.endswith((".pyc", ".swp"))]
    assert wheel.stat().st_size < MAX_BYTES


def test_its_folder_is_preferred_to_a_clone(tmp_path: Path) -> None:
    for folder in (tmp_path / "rayllm" / "data", tmp_path):
        with pytest.raises(ConfigError, match="reinstall RayLLM"):
            bundled_folder(tmp_path / "empty")
        (folder / "serve_configs").mkdir(parents=True)
        (folder / "serve_configs" / "demo.yaml").touch()
        assert bundled_folder(tmp_path / "rayllm") == tmp_path / "rayllm" / "data"
    assert demo_file() == ROOT / "serve_configs" / "demo.yaml"


def test_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [path] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"cpu", "cuda"} <= set(metadata.get_all("Provides-Extra") or ())


def test_the_source_distribution_holds_all_that_is_tracked(tmp_path: Path) -> None:
    code = f"from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {os.path.relpath(member.name, archive.name.removesuffix(".tar.gz")) for member in opened}
    assert set(tracked()) - {".gitignore"} <= held
