from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.core.errors import RequestTimeoutError
from rayllm.core.exposition import Renderer
from rayllm.core.request_stats import RequestStats
from rayllm.serving.router.telemetry import metrics as module
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.wire.record import RequestRecord

CHAT = "/v1/chat/completions"


def record(adapter: str = "", stats: RequestStats | None = None, model_id: str = "m", **keys: Any) -> RequestRecord:
    made = RequestRecord(CHAT, "id", model_id, adapter, stats=stats, started_at=100.0, **keys)
    made.ended_at = 110.0
    made.status = made.status or 200
    return made


def value(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def metrics() -> RouterMetrics:
    return RouterMetrics(dict)


def test_an_answered_request(metrics: RouterMetrics) -> None:
    stats = RequestStats(10, 4, 7, 0.5, 1.0, 3.0, "stop", 1, deliver_s=0.5)
    metrics.observe(record(stats=stats, attempts=1, routed_at=101.0, sent_at=103.0, first_byte_at=106.0))
    work = {"model": "m", "adapter": "", "endpoint": CHAT}
    timed = {"model": "m", "endpoint": CHAT}
    assert value(metrics, "rayllm_requests_total", **work, status="200") == 1
    assert value(metrics, "rayllm_finished_requests_total", model="m", adapter="", finish_reason="stop") == 1
    tokens = {"prompt": 10, "cached": 4, "completion": 7}
    assert {kind: value(metrics, "rayllm_tokens_total", **work, kind=kind) for kind in tokens} == tokens
    seconds = {
        "rayllm_request_seconds_sum": 10,
        "rayllm_router_seconds_sum": 1,
        "rayllm_wait_seconds_sum": 2,
        "rayllm_time_to_first_byte_seconds_sum": 6,
        "rayllm_time_to_first_token_seconds_sum": 6.5,
        "rayllm_time_between_tokens_seconds_sum": 0.5,
        "rayllm_engine_queue_seconds_sum": 0.5,
        "rayllm_prefill_seconds_sum": 1,
        "rayllm_decode_seconds_sum": 3,
    }
    assert {name: value(metrics, name, **timed) for name in seconds} == seconds
    assert value(metrics, "rayllm_retries_total", model="m") == 0


def test_what_was_tried_before(metrics: RouterMetrics) -> None:
    metrics.observe(record(attempts=3, fallbacks=1, continuations=2))
    assert value(metrics, "rayllm_retries_total", model="m") == 2
    assert value(metrics, "rayllm_fallbacks_total", model="m") == 1
    assert value(metrics, "rayllm_continuations_total", model="m") == 2


def test_refusals_have_a_cause(metrics: RouterMetrics) -> None:
    metrics.observe(record(status=503, refusal="overloaded_error"))
    metrics.refuse(RequestTimeoutError("too slow"))
    assert value(metrics, "rayllm_refused_total", model="m", cause="overloaded_error") == 1
    assert value(metrics, "rayllm_refused_total", model="", cause="timeout") == 1


def test_an_error_after_the_reply_has_begun_counts_by_its_own_status(metrics: RouterMetrics) -> None:
    metrics.observe(record(status=200, refusal="overloaded", error_status=503))
    work = {"model": "m", "adapter": "", "endpoint": CHAT}
    assert value(metrics, "rayllm_requests_total", **work, status="503") == 1


def test_clients_cannot_make_up_labels(metrics: RouterMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ADAPTERS", 3)
    metrics.observe(record("none", status=404))
    lines = Renderer(metrics.registry, {}).page(False).count("\n")
    for number in range(1000):
        metrics.observe(record(f"none-{number}", status=404))
    assert Renderer(metrics.registry, {}).page(False).count("\n") == lines
    for number in range(1000):
        metrics.observe(record(f"real-{number}", RequestStats(1)))
    labels = {s.labels["adapter"] for f in metrics.registry.collect() for s in f.samples if "adapter" in s.labels}
    assert labels == {"", "real-0", "real-1", "real-2", "other"}
    assert value(metrics, "rayllm_tokens_total", model="m", adapter="other", endpoint=CHAT, kind="prompt") == 997


def test_the_load_is_read_at_each_scrape() -> None:
    def replica(is_open: bool, requests: int) -> SimpleNamespace:
        return SimpleNamespace(is_open=is_open, candidate=SimpleNamespace(requests=requests))

    replica_sets: Any = {}
    metrics = RouterMetrics(lambda: replica_sets)
    metrics.update_load()
    assert value(metrics, "rayllm_requests_waiting", model="m") is None
    members = {"a": replica(True, 3), "b": replica(False, 1), "c": replica(True, 0)}
    replica_sets = {"m": SimpleNamespace(waiting=5, replicas=members)}
    metrics.update_load()
    assert value(metrics, "rayllm_requests_waiting", model="m") == 5
    assert value(metrics, "rayllm_requests_in_hand", model="m") == 4
    assert value(metrics, "rayllm_replicas", model="m", state="open") == 2
    assert value(metrics, "rayllm_replicas", model="m", state="closed") == 1
