"""Why a request took as long as it did, in one sentence."""

from __future__ import annotations

from rayllm.core.request_stats import RequestStats
from rayllm.serving.wire.record import RequestRecord

_REASONS = {
    "router": "the router read and routed the request. A slow upload or a very large body counts here.",
    "hooks": "it waited for the policy hooks of this service (`router.hooks`).",
    "guards": "it waited for guards (`router.guards`). `rayllm explain` shows their own requests, too.",
    "wait": "it waited for a free slot, because every replica had as many requests as it takes. Raise "
    "`max_ongoing_requests` or the number of replicas.",
    "transfer": "router and replica exchanged the request and its reply.",
    "prepare": "the replica read the request: its template, tokens, files and schema.",
    "queue": "it waited in the engine's queue, because the batch or the KV cache was full. Add replicas, raise "
    "`max_num_seqs`, or lower `max_ongoing_requests` so that other replicas get the request.",
    "deliver": "the reply was finished and sent after the last token.",
}


def explain(record: RequestRecord) -> str:
    """What most of the request's time was spent on, and what would shorten it."""
    parts = dict(record.parts())
    name, seconds = max(parts.items(), key=lambda part: part[1])
    share = seconds / record.total_s if record.total_s > 0 else 0.0
    return f"{_seconds(seconds)} of {_seconds(record.total_s)} ({share:.0%}): {_reason(name, record)}"


def _reason(name: str, record: RequestRecord) -> str:
    stats = record.stats or RequestStats()
    if name == "lost" and record.continuations:
        return "its replica died or had to end in the middle of the reply, and another one went on with it."
    if name == "lost":
        return (
            f"of {record.attempts} attempts, some met a replica that was full, draining or died. Replicas' logs say "
            "why."
        )
    if name == "wait" and record.waited_for == "a running replica":
        return (
            "it waited until a replica was running. Keep one with `autoscaling_config.min_replicas: 1`, or see why "
            "replicas start with `rayllm status`."
        )
    if name == "transfer" and record.stats is None:
        return "the replica had the request, but reported no times. Its log may say more."
    if name == "adapter":
        return (
            f"the replica loaded the adapter `{record.adapter}`. List it in `lora_modules` to have it loaded from the "
            "start, or raise `max_num_adapters_per_replica` if it was evicted."
        )
    if name == "prefill":
        new = stats.prompt_tokens - stats.cached_tokens
        return f"the engine read the prompt: {new} tokens that were not cached, and {stats.cached_tokens} that were."
    if name == "decode":
        return _decode(stats)
    if name == "deliver" and stats.blocked_s > stats.deliver_s / 2:
        return f"the client read slowly: the reply waited {_seconds(stats.blocked_s)} for it."
    return _REASONS[name]


def _decode(stats: RequestStats) -> str:
    mean = stats.seconds_per_token
    pace = f", one every {_seconds(mean)}" if mean else ""
    gap = f" The longest pause between two took {_seconds(stats.slowest_gap_s)}." if stats.slowest_gap_s else ""
    text = f"the engine generated {stats.generated_tokens} tokens{pace}.{gap}"
    if not stats.preemptions:
        return text
    return f"{text} Preempted: {stats.preemptions}×, because the KV cache is too small for so many requests."


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
