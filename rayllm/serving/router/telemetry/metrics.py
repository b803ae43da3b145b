"""A router's metrics of requests."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from rayllm.core.errors import RayLLMError
from rayllm.serving.cluster.metrics import Metrics, Series
from rayllm.serving.cluster.request_totals import RequestTotals
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.wire.record import RequestRecord

# Adapters with a label of their own: clients name adapters, and a folder may have any number.
_MAX_ADAPTERS = 2000
_WORK = ("model", "adapter", "endpoint")
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)


def _counted(name: str, labels: tuple[str, ...], meaning: str) -> Series:
    return Series(name, "counter", labels, meaning)


def _timed(name: str, meaning: str, *buckets: tuple[float, ...]) -> Series:
    return Series(name, "histogram", ("model", "endpoint"), meaning, *buckets)


REQUESTS = _counted(
    "rayllm_requests_total",
    (*_WORK, "status"),
    "Requests, by status; 499 if the client left before the reply began, and an error's own if that came later.",
)
FINISHED = _counted(
    "rayllm_finished_requests_total",
    ("model", "adapter", "finish_reason"),
    "Requests that an engine worked on, by why it stopped: stop, length, abort, or empty if nothing is generated.",
)
TOKENS = _counted(
    "rayllm_tokens_total",
    (*_WORK, "kind"),
    "Tokens of prompts (prompt), tokens of prompts found in a KV cache (cached), and generated tokens (completion).",
)
REFUSED = _counted(
    "rayllm_refused_total",
    ("model", "cause"),
    "Requests that the router refused or failed, by the code of the error, or `hook` or `guard` by what refused them.",
)
RETRIES = _counted(
    "rayllm_retries_total",
    ("model",),
    "Times that a request was sent to another replica, because the first was full, gone or lost.",
)
CONTINUATIONS = _counted(
    "rayllm_continuations_total",
    ("model",),
    "Times that another replica continued a stream, because the first replica was lost or had to end.",
)
FALLBACKS = _counted("rayllm_fallbacks_total", ("model",), "Requests that a fallback of their model answered.")
DURATION = _timed("rayllm_request_seconds", "From a request's headers to the end of its reply.")
FIRST_BYTE = _timed("rayllm_time_to_first_byte_seconds", "From a request's headers to the first byte of its reply.")
FIRST_TOKEN = _timed("rayllm_time_to_first_token_seconds", "From a request's headers to the first token.")
BETWEEN_TOKENS = _timed(
    "rayllm_time_between_tokens_seconds", "Mean time between two tokens of a request.", _TOKEN_BUCKETS
)
ROUTER = _timed("rayllm_router_seconds", "The router's own work: reading the request and choosing its model.")
WAIT = _timed("rayllm_wait_seconds", "Waiting for a replica with a free slot.")
ADAPTER = _timed("rayllm_adapter_seconds", "Loading the adapter, of requests that have one.")
ENGINE_QUEUE = _timed("rayllm_engine_queue_seconds", "In the engine's queue.")
PREFILL = _timed("rayllm_prefill_seconds", "From the engine's queue to the first token.")
DECODE = _timed("rayllm_decode_seconds", "From the first token to the last.")
WAITING = Series("rayllm_requests_waiting", "gauge", ("model",), "Requests that wait for a replica.")
IN_HAND = Series("rayllm_requests_in_hand", "gauge", ("model",), "Requests that replicas have from this router.")
REPLICAS = Series(
    "rayllm_replicas", "gauge", ("model", "state"), "Replicas that may be sent requests (open), or may not (closed)."
)
SERIES = (
    *(REQUESTS, REFUSED, FINISHED, TOKENS, RETRIES, CONTINUATIONS, FALLBACKS),
    *(DURATION, FIRST_BYTE, FIRST_TOKEN, BETWEEN_TOKENS),
    *(ROUTER, WAIT, ADAPTER, ENGINE_QUEUE, PREFILL, DECODE),
    *(WAITING, IN_HAND, REPLICAS),
)
"""All series of a router. On `/metrics` each also has the label `router`, the id of the router's replica."""


class RouterMetrics:
    """Counts requests and tokens by model, adapter and endpoint, and times requests by model and endpoint.

    Requests for unknown models have empty labels, so that clients cannot make up label values.
    """

    def __init__(self, replica_sets: Callable[[], Mapping[str, ReplicaSet]]) -> None:
        self.registry = CollectorRegistry()
        self._metrics = Metrics(self.registry, SERIES)
        self._replica_sets = replica_sets
        self._adapters: set[str] = set()
        self._totals: defaultdict[str, RequestTotals] = defaultdict(RequestTotals)

    def observe(self, record: RequestRecord) -> None:
        adapter = self._adapter(record)
        work = (record.model_id, adapter, record.endpoint)
        self._metrics.count(REQUESTS, (*work, str(record.outcome)))
        if record.refusal:
            self._metrics.count(REFUSED, (record.model_id, record.refusal))
        if record.attempts:
            self._metrics.count(RETRIES, (record.model_id,), record.attempts - 1)
            self._metrics.count(CONTINUATIONS, (record.model_id,), record.continuations)
            self._metrics.count(FALLBACKS, (record.model_id,), min(record.fallbacks, 1))
        if stats := record.stats:
            self._metrics.count(FINISHED, (record.model_id, adapter, stats.finish_reason))
            self._metrics.count(TOKENS, (*work, "prompt"), stats.prompt_tokens)
            self._metrics.count(TOKENS, (*work, "cached"), stats.cached_tokens)
            self._metrics.count(TOKENS, (*work, "completion"), stats.generated_tokens)
        self._time(record)
        if record.model_id:
            self._add_up(record)

    def totals(self, model_id: str) -> RequestTotals:
        return self._totals.get(model_id, RequestTotals())

    def refuse(self, error: RayLLMError) -> None:
        """Count a request that was refused before its model was known."""
        self._metrics.count(REFUSED, ("", error.log_name))

    def update_load(self) -> None:
        """Set the gauges of all models' load at this router."""
        for series in (WAITING, IN_HAND, REPLICAS):
            self._metrics.clear(series)
        for model_id, replica_set in self._replica_sets().items():
            members = replica_set.replicas.values()
            is_open = [replica.is_open for replica in members]
            self._metrics.set(WAITING, (model_id,), replica_set.waiting)
            self._metrics.set(IN_HAND, (model_id,), sum(replica.candidate.requests for replica in members))
            self._metrics.set(REPLICAS, (model_id, "open"), is_open.count(True))
            self._metrics.set(REPLICAS, (model_id, "closed"), is_open.count(False))

    def _add_up(self, record: RequestRecord) -> None:
        totals = self._totals[record.model_id]
        totals.requests += 1
        totals.refused += bool(record.refusal)
        if stats := record.stats:
            totals.prompt_tokens += stats.prompt_tokens
            totals.cached_tokens += stats.cached_tokens
        if record.first_token_s is not None:
            totals.first_tokens += 1
            totals.first_token_s += record.first_token_s

    def _time(self, record: RequestRecord) -> None:
        parts = dict(record.parts())
        seconds = {DURATION: record.total_s, ROUTER: parts["router"], FIRST_TOKEN: record.first_token_s}
        if record.first_byte_at is not None:
            seconds[FIRST_BYTE] = record.first_byte_at - record.started_at
        if record.attempts:
            seconds[WAIT] = parts["wait"]
        if stats := record.stats:
            seconds |= {ENGINE_QUEUE: stats.queued_s, PREFILL: stats.prefill_s, DECODE: stats.decode_s}
            seconds[BETWEEN_TOKENS] = stats.seconds_per_token
            seconds[ADAPTER] = stats.adapter_s if record.adapter else None
        for series, value in seconds.items():
            if value is not None:
                self._metrics.observe(series, (record.model_id, record.endpoint), value)

    def _adapter(self, record: RequestRecord) -> str:
        """The adapter's label; empty for an adapter that no replica has found."""
        if not record.adapter or record.adapter in self._adapters:
            return record.adapter
        if not record.stats:
            return ""
        if len(self._adapters) >= _MAX_ADAPTERS:
            return "other"
        self._adapters.add(record.adapter)
        return record.adapter
