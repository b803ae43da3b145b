"""lm_eval on a small task made on the spot, against any server with OpenAI's completions."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.integration.service import DEMO
from tests.integration.test_documented_clients import CLIENTS

CAPITALS = {"France": "Paris", "Germany": "Berlin", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid"}
TASK = """\
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {questions}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


# Runs lm_eval once for each list of arguments, in one process, which imports it once.
RUNS = """\
import json, sys
from lm_eval.__main__ import cli_evaluate
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()
"""


def evaluate(urls: dict[str, str], folder: Path) -> list[tuple[dict[str, Any], list[Any]]]:
    """Evaluate servers one after the other.

    Args:
        urls: address of each server, by a name for its files.
        folder: folder with the task; results are written there.

    Returns:
        For each server, lm_eval's results and the log-likelihoods it was given.
    """
    environment = {**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    runs = json.dumps([_arguments(url, folder, name) for name, url in urls.items()])
    command = [CLIENTS / "bin" / "python", "-c", RUNS, runs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [_outcome(folder / name) for name in urls]


def _arguments(url: str, folder: Path, name: str) -> list[str]:
    model = {
        "model": "rayllm-demo",
        "base_url": f"{url}/v1/completions",
        "tokenizer": str(DEMO.parent / "rayllm-demo" / "weights"),
        "tokenizer_backend": "huggingface",
        "num_concurrent": "1",
        "max_length": "512",
    }
    arguments = ["--model", "local-completions", "--tasks", "capitals", "--include_path", str(folder)]
    arguments += ["--output_path", str(folder / name), "--log_samples"]
    return [*arguments, "--model_args", ",".join(f"{key}={value}" for key, value in model.items())]


def _outcome(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    [results] = folder.rglob("results_*.json")
    [samples] = folder.rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return json.loads(results.read_text())["results"]["capitals"], [row["filtered_resps"] for row in rows]


def make_task(folder: Path) -> None:
    """Questions with one right answer among several, as a task of lm_eval's."""
    rows = [
        {
            "question": f"<|im_start|>user\nWhat is the capital of {country}?<|im_end|>\n<|im_start|>assistant\n",
            "choices": [f"The capital of {country} is {city}." for city in CAPITALS.values()],
            "answer": index,
        }
        for index, country in enumerate(CAPITALS)
    ]
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "capitals.yaml").write_text(TASK.format(questions=questions))
