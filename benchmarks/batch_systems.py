"""One system answers rows in a process of its own: `python -m benchmarks.batch_systems NAME ROWS`.

Prints one line of JSON: `rows_per_s` and `tokens_per_s`, without the time in which engines and workers start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from benchmarks.servers import DEMO

# Processes that wait most of the time want whole CPUs of Ray; these are there to schedule by.
LOGICAL_CPUS = 8
BATCH = 64
TOKENS = 64
SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True}
_QUESTION = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    name, rows = sys.argv[1], int(sys.argv[2])
    print(json.dumps(SYSTEMS[name](rows)))


def prompt(index: int) -> str:
    """The prompt of a row: none is quite like another."""
    return _QUESTION.format(f"What is the capital of country {index}?")


def _generate(rows: int, **options: Any) -> dict[str, float]:
    os.environ |= _environment()
    from vllm import LLM, SamplingParams

    engine = LLM(**_engine(), model=_weights(), **options)
    sampling = SamplingParams(**SAMPLING)
    engine.generate([prompt(-index) for index in range(BATCH)], sampling, use_tqdm=False)
    began = time.time()
    outputs = engine.generate([prompt(index) for index in range(rows)], sampling, use_tqdm=False)
    passed = time.time() - began
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"rows_per_s": rows / passed, "tokens_per_s": tokens / passed}


def _rayllm(rows: int) -> dict[str, float]:
    import ray

    from rayllm.batch import VLLMProcessorConfig, build_llm_processor

    ray.init(address="local", num_cpus=LOGICAL_CPUS, log_to_driver=False)
    environment = {"env_vars": _environment()}
    config = VLLMProcessorConfig(
        model=_weights(), engine_kwargs=_engine(), runtime_env=environment, batch_size=BATCH, is_chat=False
    )
    processor = build_llm_processor(
        config,
        preprocess=lambda row: {"prompt": prompt(row["id"]), "sampling_params": SAMPLING},
        postprocess=lambda row: {"text": row["generated_text"], "n": row["num_generated_tokens"], "at": time.time()},
        concurrency=1,
    )
    return _rate(processor(ray.data.range(rows)).take_all())


def _ray_data_llm(rows: int) -> dict[str, float]:
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    ray.init(address="local", num_cpus=LOGICAL_CPUS, log_to_driver=False)
    config = vLLMEngineProcessorConfig(
        model_source=_weights(),
        engine_kwargs=_engine(),
        runtime_env={"env_vars": _environment()},
        batch_size=BATCH,
        concurrency=1,
        chat_template_stage=False,
        placement_group_config={"bundles": [{"CPU": 1}]},
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {"prompt": prompt(row["id"]), "sampling_params": SAMPLING},
        postprocess=lambda row: {"text": row["generated_text"], "n": row["num_generated_tokens"], "at": time.time()},
    )
    return _rate(processor(ray.data.range(rows)).take_all())


def _rate(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Rows and tokens a second over the last three quarters: until then, workers of Ray are still starting."""
    ordered = sorted(rows, key=lambda row: float(row["at"]))
    start = len(ordered) // 4
    rest = ordered[start:]
    passed = float(rest[-1]["at"]) - float(ordered[start - 1]["at"])
    return {"rows_per_s": len(rest) / passed, "tokens_per_s": sum(int(row["n"]) for row in rest) / passed}


def _demo() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    return found


def _weights() -> str:
    return str((DEMO.parent / _demo()["model_loading_config"]["model_source"]).resolve())


def _engine() -> dict[str, Any]:
    return {**_demo()["engine_kwargs"], "max_model_len": 1024, "enforce_eager": True}


def _environment() -> dict[str, str]:
    # The last two are what RayLLM sets on a CPU.
    return _demo()["runtime_env"]["env_vars"] | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}


def _generate_tuned(rows: int) -> dict[str, float]:
    """As the processor has it on such a CPU: in one process, with the one thread that Ray gives to one CPU."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return _generate(rows, distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor")


SYSTEMS: dict[str, Callable[[int], dict[str, float]]] = {
    "rayllm": _rayllm,
    "LLM.generate": _generate,
    "LLM.generate, one process and one thread": _generate_tuned,
    "ray.data.llm": _ray_data_llm,
}

if __name__ == "__main__":
    main()
