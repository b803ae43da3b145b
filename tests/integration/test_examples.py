"""The examples as a person runs them: programs that write parquet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.service import ROOT

# They start up to three engines, one after the other.
pytestmark = pytest.mark.timeout(1500)


# Runs programs as a person does, one after another with the same Ray, which takes long to start.
PROGRAMS = """\
import runpy, sys
for arguments in sys.argv[1:]:
    sys.argv = arguments.split("|")
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the output of each example, and what they said. They run as if from somewhere else."""
    folder = tmp_path_factory.mktemp("examples")
    return folder, run(*([f"{name}.py", "--output", f"{folder}/{name}"] for name in ("minimal", "rag", "branches")))


def run(*examples: list[str]) -> str:
    """Run examples with their arguments to their ends; what they said."""
    # A cluster that is just ending would be found as well.
    variables = os.environ | {"RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", PROGRAMS, *(f"{ROOT}/examples/{'|'.join(example)}" for example in examples)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, cwd="/", env=variables, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


def written(folder: Path) -> list[dict[str, Any]]:
    """The rows of its parquet files, none of which has failed."""
    rows = pq.read_table(folder).to_pylist()
    assert [row["__error__"] for row in rows if row["__error__"]] == []
    return rows


def answers(folder: Path, column: str = "answer") -> dict[str, str]:
    """The answer to each question."""
    return {row["question"]: row[column] for row in written(folder)}


def test_minimal(outputs: tuple[Path, str]) -> None:
    folder, said = outputs
    assert answers(folder / "minimal") == {
        "What is the capital of France?": "The capital of France is Paris.",
        "What is the capital of Germany?": "The capital of Germany is Berlin.",
        "What is the capital of Japan?": "The capital of Japan is Tokyo.",
        "What is the capital of Kenya?": "The capital of Kenya is Nairobi.",
        "What is the capital of Peru?": "The capital of Peru is Lima.",
    }
    assert "The capital of Kenya is Nairobi." in said


def test_rag(outputs: tuple[Path, str]) -> None:
    rows = written(outputs[0] / "rag")
    assert set(rows[0]) == {"question", "retrieved", "answer", "__error__"}
    assert {row["question"]: (row["retrieved"], row["answer"]) for row in rows} == {
        "How do the dishes taste at dinner?": ("The food was terrible.", "negative"),
        "How friendly are the people who work there?": ("The staff is wonderful!", "positive"),
        "What does one see from the balcony?": ("I love the view!", "positive"),
        "Can one swim in the sea nearby?": ("The beach was disgusting.", "negative"),
        "How does one get there by rail?": ("The train was awful.", "negative"),
        "Is there anything for lovers of art and history?": ("We enjoy the museum.", "positive"),
        "How good was the music in the evening?": ("The concert was boring.", "negative"),
    }


def test_branches(outputs: tuple[Path, str]) -> None:
    folder = outputs[0] / "branches"
    assert answers(folder / "easy") == {
        "What is the capital of Norway?": "The capital of Norway is Oslo.",
        "What is the capital of Brazil?": "The capital of Brazil is Brasilia.",
        "Which city is the capital of Egypt?": "The capital of Egypt is Cairo.",
    }
    hard = answers(folder / "hard")
    assert set(hard) == {"Tell me a story.", "Can you tell me a story?"}
    for story in hard.values():
        assert story.startswith("Arrr, gather round, matey!")
        assert story.endswith("as strong as a big one, matey!")
