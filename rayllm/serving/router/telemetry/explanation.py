"""Why a request took as long as it did, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rayllm.core.request_stats import RequestStats
from rayllm.serving.router.requests.record import RequestRecord


def explain(record: RequestRecord) -> str:
    """What most of the request's time was spent on, and what would shorten it."""
    parts = dict(record.parts())
    name, seconds = max(parts.items(), key=lambda part: part[1])
    share = seconds / record.total_s if record.total_s > 0 else 0.0
    return f"{_seconds(seconds)} of {_seconds(record.total_s)} ({share:.0%}): {_REASONS[name](record)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _stats(record: RequestRecord) -> RequestStats:
    return record.stats or RequestStats()


def _router(record: RequestRecord) -> str:
    return "the router read and routed the request. A slow upload or a very large body counts here."


def _hooks(record: RequestRecord) -> str:
    return "it waited for the policy hooks of this service (`router.hooks`)."


def _guards(record: RequestRecord) -> str:
    return "it waited for guards (`router.guards`). `rayllm explain` shows their own requests, too."


def _lost(record: RequestRecord) -> str:
    if record.continuations:
        return "its replica died or had to end in the middle of the reply, and another one went on with it."
    return f"of {record.attempts} attempts, some met a replica that was full, draining or died. Replicas' logs say why."


def _wait(record: RequestRecord) -> str:
    if record.waited_for == "a running replica":
        return (
            "it waited until a replica was running. Keep one with `autoscaling_config.min_replicas: 1`, or see why "
            "replicas start with `rayllm status`."
        )
    return (
        "it waited for a free slot, because every replica had as many requests as it takes. Raise "
        "`max_ongoing_requests` or the number of replicas."
    )


def _transfer(record: RequestRecord) -> str:
    if record.stats is None:
        return "the replica had the request, but reported no times. Its log may say more."
    return "router and replica exchanged the request and its reply."


def _adapter(record: RequestRecord) -> str:
    return (
        f"the replica loaded the adapter `{record.adapter}`. List it in `lora_modules` to have it loaded from the "
        "start, or raise `max_num_adapters_per_replica` if it was evicted."
    )


def _prepare(record: RequestRecord) -> str:
    return "the replica read the request: its template, tokens, files and schema."


def _queue(record: RequestRecord) -> str:
    return (
        "it waited in the engine's queue, because the batch or the KV cache was full. Add replicas, raise "
        "`max_num_seqs`, or lower `max_ongoing_requests` so that other replicas get the request."
    )


def _prefill(record: RequestRecord) -> str:
    stats = _stats(record)
    new = stats.prompt_tokens - stats.cached_tokens
    return f"the engine read the prompt: {new} tokens that were not cached, and {stats.cached_tokens} that were."


def _decode(record: RequestRecord) -> str:
    stats = _stats(record)
    mean = stats.seconds_per_token
    pace = f", one every {_seconds(mean)}" if mean else ""
    gap = f" The longest pause between two took {_seconds(stats.slowest_gap_s)}." if stats.slowest_gap_s else ""
    preempted = (
        f" Preempted: {stats.preemptions}×, because the KV cache is too small for so many requests."
        if stats.preemptions
        else ""
    )
    return f"the engine generated {stats.generated_tokens} tokens{pace}.{gap}{preempted}"


def _deliver(record: RequestRecord) -> str:
    stats = _stats(record)
    if stats.blocked_s > stats.deliver_s / 2:
        return f"the client read slowly: the reply waited {_seconds(stats.blocked_s)} for it."
    return "the reply was finished and sent after the last token."


_REASONS: Mapping[str, Callable[[RequestRecord], str]] = {
    "router": _router,
    "hooks": _hooks,
    "guards": _guards,
    "lost": _lost,
    "wait": _wait,
    "transfer": _transfer,
    "adapter": _adapter,
    "prepare": _prepare,
    "queue": _queue,
    "prefill": _prefill,
    "decode": _decode,
    "deliver": _deliver,
}
