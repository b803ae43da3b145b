"""Questions → a small model judges them → the small model answers the easy ones, a large one the hard ones.

    .venv/bin/python examples/branches.py [--output DIR]

The demo model, under a second configuration and in its pirate's voice, stands for the large one. It is too small to say
what is hard, so it is judged by how it would begin: a capital is easy, a story is hard. Ask a real model for `easy` or
`hard`. Writes `question` and `answer` into DIR/easy and DIR/hard.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import ray

from rayllm.batch import VLLMProcessorConfig, build_llm_processor

DEMO = Path(__file__).resolve().parents[1] / "models" / "rayllm-demo.yaml"
SMALL = VLLMProcessorConfig(model=DEMO)
LARGE = VLLMProcessorConfig(model=DEMO, engine_kwargs={"max_num_seqs": 16})
EASY, HARD = "The capital of", "Once upon a time"
QUESTIONS = [
    "What is the capital of Norway?",
    "Tell me a story.",
    "What is the capital of Brazil?",
    "Can you tell me a story?",
    "Which city is the capital of Egypt?",
]

judge = build_llm_processor(
    SMALL,
    preprocess=lambda row: {
        "messages": row["question"],
        "sampling_params": {"temperature": 0, "guided_choice": [EASY, HARD]},
    },
    postprocess=lambda row: {"is_easy": row["generated_text"] == EASY},
)
answer_easy = build_llm_processor(
    SMALL,
    preprocess=lambda row: {
        "messages": row["question"],
        "sampling_params": {"temperature": 0, "max_tokens": 32},
    },
    postprocess=lambda row: {"answer": row["generated_text"]},
)
answer_hard = build_llm_processor(
    LARGE,
    preprocess=lambda row: {
        "messages": row["question"],
        "model": "rayllm-demo:pirate",
        "sampling_params": {"temperature": 0, "max_tokens": 400},
    },
    postprocess=lambda row: {"answer": row["generated_text"]},
)


def main(output: str) -> None:
    """Write the answers into the folders `easy` and `hard` of `output`."""
    questions = ray.data.from_items([{"question": question} for question in QUESTIONS])
    # Two datasets are made from it; without `materialize`, each of them would have all questions judged.
    judged = judge(questions).materialize()
    answer_easy(judged.filter(lambda row: row["is_easy"])).write_parquet(f"{output}/easy")
    answer_hard(judged.filter(lambda row: not row["is_easy"])).write_parquet(f"{output}/hard")
    for branch in ("easy", "hard"):
        answers = pq.read_table(f"{output}/{branch}", columns=["question", "answer"])
        print(answers.to_pandas().to_string(index=False, max_colwidth=80))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default=tempfile.mkdtemp(prefix="branches-"), help="folder for the parquet files")
    main(parser.parse_args().output)
