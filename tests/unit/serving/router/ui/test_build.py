"""The files of the page are what `make ui` builds of its sources."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from rayllm.serving.router.ui.pages import STATIC

SOURCE = STATIC.parent / "source"
BUILD = json.loads((STATIC / "build.json").read_text())


def sources() -> list[Path]:
    """As `build.mjs` lists them."""
    files = (path for path in SOURCE.rglob("*") if path.is_file())
    names = {path.relative_to(SOURCE).as_posix(): path for path in files}
    return [path for name, path in sorted(names.items()) if not name.startswith("node_modules/")]


def test_they_are_built_of_these_sources() -> None:
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(SOURCE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    assert digest.hexdigest() == BUILD["sources"], "run `make ui`: the page's sources have changed since it was built"


def test_the_built_files_are_not_edited() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.iterdir()}
    found.pop("build.json")
    assert found == BUILD["files"]


def test_the_versions_are_locked_and_name_no_registry() -> None:
    packages = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in package for package in packages.values())
    wanted = json.loads((SOURCE / "package.json").read_text())
    for name, version in (wanted["dependencies"] | wanted["devDependencies"]).items():
        assert packages[f"node_modules/{name}"]["version"] == version
        assert packages[f"node_modules/{name}"]["integrity"]


@pytest.mark.parametrize("name", json.loads((SOURCE / "package.json").read_text())["dependencies"])
def test_the_licenses_of_what_is_in_them_are_beside_them(name: str) -> None:
    text = (STATIC / "LICENSES.txt").read_text()
    assert f"{name} {json.loads((SOURCE / 'package.json').read_text())['dependencies'][name]} (" in text
