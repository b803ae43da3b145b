"""Questions → the demo model → answers.

    .venv/bin/python examples/minimal.py [--output DIR]

Writes `question` and `answer`, and `__error__`, which says of a row that failed why; here it is null.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import ray

from rayllm.batch import VLLMProcessorConfig, build_llm_processor

DEMO = Path(__file__).resolve().parents[1] / "models" / "rayllm-demo.yaml"
COUNTRIES = ["France", "Germany", "Japan", "Kenya", "Peru"]


def main(output: str) -> None:
    """Write the answers into the folder `output`."""
    questions = ray.data.from_items([{"question": f"What is the capital of {country}?"} for country in COUNTRIES])
    processor = build_llm_processor(
        VLLMProcessorConfig(model=DEMO),
        preprocess=lambda row: {
            "messages": row["question"],
            "sampling_params": {"temperature": 0, "max_tokens": 32},
        },
        postprocess=lambda row: {"answer": row["generated_text"]},
    )
    processor(questions).write_parquet(output)
    print(pq.read_table(output, columns=["question", "answer"]).to_pandas().to_string(index=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default=tempfile.mkdtemp(prefix="minimal-"), help="folder for the parquet files")
    main(parser.parse_args().output)
