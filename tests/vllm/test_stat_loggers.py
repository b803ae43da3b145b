"""Stats of an engine's steps, recorded in batches."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from rayllm.engine.vllm.stat_loggers import StepBuffer, stat_loggers

DEMO = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"


def test_a_page_has_all_steps_that_were_before_it() -> None:
    registry, steps = CollectorRegistry(), StepBuffer()
    registry.register(steps)
    counter = Counter("steps", "Steps.", registry=registry)
    steps.add(counter.inc)
    steps.add(counter.inc)
    assert b"steps_total 2.0" in generate_latest(registry)
    steps.add(counter.inc)
    assert b"steps_total 3.0" in generate_latest(registry)


def test_a_step_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    steps, recorded = StepBuffer(), []
    steps.add(lambda: recorded.append(1))
    steps.add(lambda: recorded.append(1 // 0))
    steps.add(lambda: recorded.append(3))
    with caplog.at_level(logging.ERROR):
        steps.flush()
    assert recorded == [1, 3]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("exports_to_ray", [False, True])
def test_a_step_is_on_the_page(exports_to_ray: bool) -> None:
    config = AsyncEngineArgs(model=str(DEMO), dtype="float32", max_model_len=64).create_engine_config()
    manager = StatLoggerManager(config, [0], stat_loggers(exports_to_ray), enable_default_loggers=False)
    manager.record(SchedulerStats(num_running_reqs=3), IterationStats())
    [running] = [line for line in generate_latest().splitlines() if line.startswith(b"vllm:num_requests_running{")]
    assert running.endswith(b" 3.0")
