"""What is imported when: the package itself is light, and the router knows no engine."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh Python has loaded after `statement`."""
    code = f"import sys; {statement}; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_the_package_loads_neither_ray_nor_an_engine() -> None:
    assert loaded_by("import rayllm").isdisjoint({"ray", "vllm", "torch", "transformers", "pydantic"})


@pytest.mark.parametrize(
    "module", ["rayllm.serving.router.deployment", "rayllm.deploy.composition", "rayllm.cli.commands.run"]
)
def test_router_and_composition_load_no_engine(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint({"vllm", "torch", "transformers"})


def test_the_builder_can_be_named_as_a_serve_config_names_it() -> None:
    assert "ray" in loaded_by("import rayllm.deploy.composition; from rayllm import app; assert callable(app)")


def test_help_loads_nothing_heavy() -> None:
    said = "from rayllm.cli.main import cli; cli(['--help'], standalone_mode=False)"
    heavy = {"ray", "vllm", "torch", "transformers", "pydantic", "yaml", "aiohttp", "rich", "huggingface_hub", "boto3"}
    assert loaded_by(said).isdisjoint(heavy)


@pytest.mark.parametrize("module", ["deploy.composition", "batch", "serving.batch_api", "cli.main"])
def test_extras_are_needed_only_where_they_are_used(module: str) -> None:
    extras = ("PIL", "awscrt", "vllm", "faiss")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import rayllm.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
