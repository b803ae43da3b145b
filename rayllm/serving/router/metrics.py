"""A router's metrics of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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


class RouterMetrics:
    """Counts requests and tokens by model, adapter and endpoint, and times requests by model and endpoint.

    Requests for unknown models have empty labels, so that clients cannot make up label values.

    Args:
        replica_sets: the replicas of each model, by model id; called whenever the metrics are read.
    """

    def __init__(self, replica_sets: Callable[[], Mapping[str, ReplicaSet]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Load(replica_sets))
        self._adapters: set[str] = set()
        self._requests = Counter(
            "rayllm_requests",
            "Requests, by status; 499 if the client left before the reply began.",
            (*_WORK, "status"),
            registry=self.registry,
        )
        self._finished = Counter(
            "rayllm_finished_requests",
            "Requests that an engine answered, by why it stopped: stop, length, abort, or nothing generated.",
            ("model", "adapter", "finish_reason"),
            registry=self.registry,
        )
        self._prompt_tokens = self._tokens("rayllm_prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = self._tokens("rayllm_cached_tokens", "Tokens of prompts that were in a KV cache.")
        self._generated_tokens = self._tokens("rayllm_generated_tokens", "Generated tokens.")
        self._retries = Counter(
            "rayllm_retries",
            "Times that a request was sent to another replica, because one was full, gone or lost.",
            ("model",),
            registry=self.registry,
        )
        self._fallbacks = Counter(
            "rayllm_fallbacks", "Requests that a fallback of their model answered.", ("model",), registry=self.registry
        )
        self._duration = self._seconds("rayllm_request_seconds", "From a request's headers to the end of its reply.")
        self._first_byte = self._seconds(
            "rayllm_time_to_first_byte_seconds", "From a request's headers to the first byte of its reply."
        )
        self._router_wait = self._seconds(
            "rayllm_router_seconds", "From a request's headers until a replica gets it: reading, routing and waiting."
        )
        self._engine_queue = self._seconds("rayllm_engine_queue_seconds", "In the engine's queue.")
        self._prefill = self._seconds("rayllm_prefill_seconds", "From the engine's queue to the first token.")
        self._decode = self._seconds("rayllm_decode_seconds", "From the first token to the last.")

    def observe(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        adapter = self._adapter(record)
        labels = (record.model_id, adapter, record.endpoint)
        self._requests.labels(*labels, str(record.status)).inc()
        timed = (record.model_id, record.endpoint)
        self._duration.labels(*timed).observe(record.ended_at - record.started_at)
        if record.first_byte_at is not None:
            self._first_byte.labels(*timed).observe(record.first_byte_at - record.started_at)
        if record.sent_at is not None:
            self._router_wait.labels(*timed).observe(record.sent_at - record.started_at)
        if record.attempts > 1:
            self._retries.labels(record.model_id).inc(record.attempts - 1)
        if record.fallbacks:
            self._fallbacks.labels(record.model_id).inc()
        if stats := record.stats:
            self._finished.labels(record.model_id, adapter, stats.finish_reason).inc()
            self._prompt_tokens.labels(*labels).inc(stats.prompt_tokens)
            self._cached_tokens.labels(*labels).inc(stats.cached_tokens)
            self._generated_tokens.labels(*labels).inc(stats.generated_tokens)
            self._engine_queue.labels(*timed).observe(stats.queued_s)
            self._prefill.labels(*timed).observe(stats.prefill_s)
            self._decode.labels(*timed).observe(stats.decode_s)

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

    def _tokens(self, name: str, documentation: str) -> Counter:
        return Counter(name, documentation, _WORK, registry=self.registry)

    def _seconds(self, name: str, documentation: str) -> Histogram:
        return Histogram(name, documentation, ("model", "endpoint"), buckets=_BUCKETS, registry=self.registry)


class _Load(Collector):
    """The load of each model, as this router sees it."""

    def __init__(self, replica_sets: Callable[[], Mapping[str, ReplicaSet]]) -> None:
        self._replica_sets = replica_sets

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("rayllm_waiting_requests", "Requests that wait for a replica.", labels=["model"])
        ongoing = GaugeMetricFamily("rayllm_ongoing_requests", "Requests that replicas have.", labels=["model"])
        replicas = GaugeMetricFamily(
            "rayllm_replicas", "Replicas, by whether they may be sent requests.", labels=["model", "state"]
        )
        for model_id, replica_set in self._replica_sets().items():
            members = replica_set.replicas.values()
            is_open = [replica.is_open for replica in members]
            waiting.add_metric([model_id], replica_set.waiting)
            ongoing.add_metric([model_id], sum(replica.candidate.requests for replica in members))
            replicas.add_metric([model_id, "open"], is_open.count(True))
            replicas.add_metric([model_id, "closed"], is_open.count(False))
        yield from (waiting, ongoing, replicas)
