"""What an earlier version had says by name what to use instead."""

from __future__ import annotations

import importlib

import pytest

from tests.unit.cli.test_cli import rayllm


@pytest.mark.parametrize(
    ("arguments", "name", "hint"),
    [
        (["query", "--file", "-", "--concurrency", "2"], "--file", "`rayllm batch run`"),
        (["query", "a", "-o", "b.jsonl"], "-o", "`rayllm query --json"),
        (["query", "a", "--output", "b.jsonl"], "--output", "`rayllm query --json"),
        (["query", "a", "--force"], "--force", "`rayllm query --json"),
        (["query", "--concurrency", "3", "hi"], "--concurrency", "`rayllm batch run`"),
        (["gen-config", "--variant", "fp8"], "--variant", "`rayllm catalog` lists"),
        (["bench", "--requests", "20"], "rayllm bench", "guidellm"),
        (["bench", "--help"], "rayllm bench", "`vllm bench serve`"),
        (["collect-env"], "rayllm collect-env", "`rayllm doctor`"),
        (["gen-config", "--recipe", "a.yaml", "--accelerator-type", "H100"], "--recipe", "`rayllm catalog` lists"),
        (["gen-config", "--recipe=a.yaml", "--feature", "b=c"], "--recipe", "`rayllm catalog` lists"),
    ],
)
def test_what_was_removed_names_its_replacement(arguments: list[str], name: str, hint: str) -> None:
    done = rayllm(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    error, instead = done.stderr.splitlines()
    assert error == f"error: `{name}` was removed."
    assert instead.startswith("hint: ")
    assert hint in instead


def test_help_does_not_list_what_was_removed() -> None:
    assert "--recipe" not in rayllm("gen-config", "--help").stdout


@pytest.mark.parametrize("module", ["rayllm.client", "rayllm.client.api.server"])
def test_the_client_names_its_replacement(module: str) -> None:
    with pytest.raises(ImportError, match="use the `openai` package"):
        importlib.import_module(module)
