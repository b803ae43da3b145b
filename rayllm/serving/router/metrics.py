"""A router's metrics of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.router.requests.record import RequestRecord

# Adapters with a label of their own: the names are clients', as long as the folder of adapters has them.
_MAX_ADAPTERS = 2000
_OTHER = "other"
# Seconds, from a cached answer to a long one.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_WORK = ("model", "adapter", "endpoint")
_TIMED = ("model", "endpoint")


class Series(NamedTuple):
    """A metric: its name as scraped, without a histogram's endings, its kind, labels and meaning."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    help: str


REQUESTS = Series(
    "rayllm_requests_total",
    "counter",
    (*_WORK, "status"),
    "Requests, by status; 499 if the client left before the reply began.",
)
FINISHED = Series(
    "rayllm_finished_requests_total",
    "counter",
    ("model", "adapter", "finish_reason"),
    "Requests that an engine worked on, by why it stopped: stop, length, abort, or empty if nothing is generated.",
)
PROMPT_TOKENS = Series("rayllm_prompt_tokens_total", "counter", _WORK, "Tokens of prompts.")
CACHED_TOKENS = Series("rayllm_cached_tokens_total", "counter", _WORK, "Tokens of prompts that were in a KV cache.")
GENERATED_TOKENS = Series("rayllm_generated_tokens_total", "counter", _WORK, "Generated tokens.")
RETRIES = Series(
    "rayllm_retries_total",
    "counter",
    ("model",),
    "Times that a request was sent to another replica, because one was full, gone or lost.",
)
FALLBACKS = Series("rayllm_fallbacks_total", "counter", ("model",), "Requests that a fallback of their model answered.")
DURATION = Series("rayllm_request_seconds", "histogram", _TIMED, "From a request's headers to the end of its reply.")
FIRST_BYTE = Series(
    "rayllm_time_to_first_byte_seconds", "histogram", _TIMED, "From a request's headers to the first byte of its reply."
)
ROUTER = Series(
    "rayllm_router_seconds",
    "histogram",
    _TIMED,
    "From a request's headers until a replica gets it: reading, routing and waiting.",
)
ENGINE_QUEUE = Series("rayllm_engine_queue_seconds", "histogram", _TIMED, "In the engine's queue.")
PREFILL = Series("rayllm_prefill_seconds", "histogram", _TIMED, "From the engine's queue to the first token.")
DECODE = Series("rayllm_decode_seconds", "histogram", _TIMED, "From the first token to the last.")
WAITING = Series("rayllm_waiting_requests", "gauge", ("model",), "Requests that wait for a replica.")
ONGOING = Series("rayllm_ongoing_requests", "gauge", ("model",), "Requests that replicas have from this router.")
REPLICAS = Series(
    "rayllm_replicas", "gauge", ("model", "state"), "Replicas that may be sent requests (open), and others (closed)."
)
SERIES = (
    *(REQUESTS, FINISHED, PROMPT_TOKENS, CACHED_TOKENS, GENERATED_TOKENS, RETRIES, FALLBACKS),
    *(DURATION, FIRST_BYTE, ROUTER, ENGINE_QUEUE, PREFILL, DECODE),
    *(WAITING, ONGOING, REPLICAS),
)
"""All series of a router. Every one has the label `router` besides, the id of the router's replica."""


class RouterMetrics:
    """Counts requests and tokens by model, adapter and endpoint, and times requests by model and endpoint.

    Requests for unknown models have empty labels, so that clients cannot make up label values.

    Args:
        replica_sets: the replicas of each model, by model id; called whenever the metrics are read.
    """

    def __init__(self, replica_sets: Callable[[], Mapping[str, ReplicaSet]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Load(replica_sets))
        self._counters = {each: self._counter(each) for each in SERIES if each.kind == "counter"}
        self._histograms = {each: self._histogram(each) for each in SERIES if each.kind == "histogram"}
        self._adapters: set[str] = set()

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        adapter = self._adapter(record)
        work = (record.model_id, adapter, record.endpoint)
        timed = (record.model_id, record.endpoint)
        self._count(REQUESTS, (*work, str(record.status)))
        self._time(DURATION, timed, record.ended_at - record.started_at)
        if record.first_byte_at is not None:
            self._time(FIRST_BYTE, timed, record.first_byte_at - record.started_at)
        if record.sent_at is not None:
            self._time(ROUTER, timed, record.sent_at - record.started_at)
        if record.attempts > 1:
            self._count(RETRIES, (record.model_id,), record.attempts - 1)
        if record.fallbacks:
            self._count(FALLBACKS, (record.model_id,))
        if stats := record.stats:
            self._count(FINISHED, (record.model_id, adapter, stats.finish_reason))
            self._count(PROMPT_TOKENS, work, stats.prompt_tokens)
            self._count(CACHED_TOKENS, work, stats.cached_tokens)
            self._count(GENERATED_TOKENS, work, stats.generated_tokens)
            self._time(ENGINE_QUEUE, timed, stats.queued_s)
            self._time(PREFILL, timed, stats.prefill_s)
            self._time(DECODE, timed, stats.decode_s)

    def _adapter(self, record: RequestRecord) -> str:
        """The adapter's label. An adapter that no replica has found to exist gets none."""
        if not record.adapter or record.adapter in self._adapters:
            return record.adapter
        if not record.stats:
            return ""
        if len(self._adapters) >= _MAX_ADAPTERS:
            return _OTHER
        self._adapters.add(record.adapter)
        return record.adapter

    def _count(self, series: Series, labels: tuple[str, ...], amount: float = 1) -> None:
        self._counters[series].labels(*labels).inc(amount)

    def _time(self, series: Series, labels: tuple[str, ...], seconds: float) -> None:
        self._histograms[series].labels(*labels).observe(seconds)

    def _counter(self, series: Series) -> Counter:
        return Counter(series.name, series.help, series.labels, registry=self.registry)

    def _histogram(self, series: Series) -> Histogram:
        return Histogram(series.name, series.help, series.labels, buckets=_BUCKETS, registry=self.registry)


class _Load(Collector):
    """The load of each model, as this router sees it."""

    def __init__(self, replica_sets: Callable[[], Mapping[str, ReplicaSet]]) -> None:
        self._replica_sets = replica_sets

    def collect(self) -> Iterator[Metric]:
        waiting, ongoing, replicas = (
            GaugeMetricFamily(each.name, each.help, labels=each.labels) for each in (WAITING, ONGOING, REPLICAS)
        )
        for model_id, replica_set in self._replica_sets().items():
            members = replica_set.replicas.values()
            is_open = [replica.is_open for replica in members]
            waiting.add_metric([model_id], replica_set.waiting)
            ongoing.add_metric([model_id], sum(replica.candidate.requests for replica in members))
            replicas.add_metric([model_id, "open"], is_open.count(True))
            replicas.add_metric([model_id, "closed"], is_open.count(False))
        yield from (waiting, ongoing, replicas)


def reference() -> str:
    """The series as a table for the docs."""
    rows = [f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |" for each in SERIES]
    return "\n".join(["| Series | Kind | Labels | Meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"
