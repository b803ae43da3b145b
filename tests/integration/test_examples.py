"""The examples as a person runs them: programs that write parquet, each on a Ray of its own."""

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


def run(example: str, output: Path, *arguments: str) -> str:
    """Run an example to its end, as if from somewhere else; what it said."""
    command = [sys.executable, str(ROOT / "examples" / example), "--output", str(output), *arguments]
    # A cluster that is just ending would be found as well.
    variables = os.environ | {"RAY_ADDRESS": "local"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1400, cwd=output.parent, env=variables, check=False
    )
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


def test_minimal(tmp_path: Path) -> None:
    said = run("minimal.py", tmp_path / "out")
    assert answers(tmp_path / "out") == {
        "What is the capital of France?": "The capital of France is Paris.",
        "What is the capital of Germany?": "The capital of Germany is Berlin.",
        "What is the capital of Japan?": "The capital of Japan is Tokyo.",
        "What is the capital of Kenya?": "The capital of Kenya is Nairobi.",
        "What is the capital of Peru?": "The capital of Peru is Lima.",
    }
    assert "The capital of Kenya is Nairobi." in said


def test_rag(tmp_path: Path) -> None:
    run("rag.py", tmp_path / "out")
    rows = written(tmp_path / "out")
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


def test_branches(tmp_path: Path) -> None:
    run("branches.py", tmp_path / "out")
    assert answers(tmp_path / "out" / "easy") == {
        "What is the capital of Norway?": "The capital of Norway is Oslo.",
        "What is the capital of Brazil?": "The capital of Brazil is Brasilia.",
        "Which city is the capital of Egypt?": "The capital of Egypt is Cairo.",
    }
    hard = answers(tmp_path / "out" / "hard")
    assert set(hard) == {"Tell me a story.", "Can you tell me a story?"}
    for story in hard.values():
        assert story.startswith("Arrr, gather round, matey!")
        assert story.endswith("as strong as a big one, matey!")
