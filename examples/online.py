"""Conversations → an endpoint that speaks OpenAI's API → answers: no engine in the job.

    make run                                       # in another terminal: RayLLM itself, with the demo model
    .venv/bin/python examples/online.py [--output DIR]

or against any other service, with the key in an environment variable:

    .venv/bin/python examples/online.py --url https://api.openai.com/v1/chat/completions --model gpt-4o-mini \\
        --key-variable OPENAI_API_KEY

Writes `messages` and `resp`.
"""

from __future__ import annotations

import argparse
import tempfile

import pyarrow.parquet as pq
import ray

from rayllm.batch import HTTPRequestProcessorConfig, build_llm_processor

QUESTIONS = ["What is RayLLM?", "What is vLLM?", "What is the capital of Iceland?"]


def main(output: str, url: str, model: str, key_variable: str | None) -> None:
    """Write what `model` at `url` answers into the folder `output`."""
    conversations = ray.data.from_items(
        [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    )
    processor = build_llm_processor(
        HTTPRequestProcessorConfig(
            url=url,
            # The name alone: the key stays out of the program, and Ray's logs.
            header=f"Authorization: Bearer ${key_variable}" if key_variable else None,
            qps=10,
        ),
        preprocess=lambda row: {
            "model": model,
            "messages": row["messages"],
            "sampling_params": {"temperature": 0, "max_tokens": 64},
        },
        postprocess=lambda row: {"resp": row["generated_text"]},
        concurrency=2,
    )
    processor(conversations).write_parquet(output)
    print(pq.read_table(output, columns=["messages", "resp"]).to_pandas().to_string(index=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", default=tempfile.mkdtemp(prefix="online-"), help="folder for the parquet files")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1/chat/completions")
    parser.add_argument("--model", default="rayllm-demo")
    parser.add_argument("--key-variable", help="environment variable that holds the key")
    options = parser.parse_args()
    main(options.output, options.url, options.model, options.key_variable)
