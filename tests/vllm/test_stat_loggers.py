"""Stats of an engine's steps on the page of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import generate_latest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerManager
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, PrefixCacheStats, SchedulerStats

from rayllm.engine.vllm.stat_loggers import stat_loggers

DEMO = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"


@pytest.fixture(scope="module")
def config() -> VllmConfig:
    engine = AsyncEngineArgs(model=str(DEMO), dtype="float32", max_model_len=64, enable_lora=True, max_loras=2)
    return engine.create_engine_config()


def page_of(loggers: list[Any], config: VllmConfig, steps: Sequence[tuple[SchedulerStats, IterationStats]]) -> str:
    """vLLM's series on the page after the steps, without the times of their creation."""
    manager = StatLoggerManager(config, [0], loggers, enable_default_loggers=False)
    for step in steps:
        manager.record(*step)
    lines = generate_latest().decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("vllm:") and "_created" not in line)


def step(number: int) -> tuple[SchedulerStats, IterationStats]:
    """The stats of a step with some of everything."""
    random = Random(number)
    finished = FinishedRequestStats(
        FinishReason.LENGTH,
        e2e_latency=random.expovariate(1),
        num_prompt_tokens=random.randrange(1, 4000),
        num_generation_tokens=random.randrange(1, 500),
        max_tokens_param=500,
        prefill_time=random.expovariate(10),
        mean_time_per_output_token=0.025,
    )
    iteration = IterationStats()
    iteration.num_generation_tokens = random.randrange(100)
    iteration.finished_requests = [finished] * random.randrange(3)
    # Among them a bound of a bucket, and more than all bounds.
    iteration.inter_token_latencies_iter = [0.025, 0.0, 1e6, *(random.expovariate(20) for _ in range(20))]
    iteration.time_to_first_tokens_iter = [random.expovariate(5)]
    hits = PrefixCacheStats(requests=1, queries=10, hits=random.randrange(10))
    return SchedulerStats(num_running_reqs=number, kv_cache_usage=random.random(), prefix_cache_stats=hits), iteration


@pytest.mark.parametrize("exports_to_ray", [False, True])
def test_the_page_is_the_one_of_vllms_own_logger(exports_to_ray: bool, config: VllmConfig) -> None:
    steps = [step(number) for number in range(50)]
    theirs, ours = (page_of(each, config, steps) for each in ([PrometheusStatLogger], stat_loggers(exports_to_ray)))
    assert without_adapters(ours) == without_adapters(theirs)
    assert 'vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name=' in ours


def without_adapters(page: str) -> list[str]:
    """The lines of a page, but for the times when sets of adapters were last in a step."""
    return [line for line in page.splitlines() if not line.startswith("vllm:lora_requests_info")]


def test_sets_of_adapters_are_bounded_on_the_page(config: VllmConfig) -> None:
    sets = [{f"adapter-{number}": 1} for number in range(950)]
    steps = [(SchedulerStats(running_lora_adapters=each), IterationStats()) for each in sets]
    page = page_of(stat_loggers(True), config, steps)
    lines = [line for line in page.splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert 1 <= len(lines) <= 100
    assert any('running_lora_adapters="adapter-949"' in line for line in lines)
