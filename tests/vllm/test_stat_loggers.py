"""Stats of an engine's steps, recorded in batches."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from vllm.v1.metrics.loggers import PrometheusStatLogger

from rayllm.engine.vllm.stat_loggers import BatchedStatLogger, StepBuffer, stat_loggers


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


def test_vllm_leaves_out_its_own_logger_and_keeps_ours() -> None:
    prometheus, ray = stat_loggers(exports_to_ray=True)
    assert prometheus is BatchedStatLogger
    assert issubclass(BatchedStatLogger, PrometheusStatLogger)
    assert not isinstance(ray, type)
    assert stat_loggers(exports_to_ray=False) == [BatchedStatLogger]
