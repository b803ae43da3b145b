"""Summarizes vLLM's records of requests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from rayllm.core.request_stats import FinishReason, RequestStats
from rayllm.engine.middleware.request_scope import Recording


def collect(engine: Any, sequences: Callable[[], list[Any] | None]) -> None:
    """Add vLLM's records of a request's sequences to the list, if any, that `sequences` returns for the request."""
    processor = engine.output_processor
    add_request = processor.add_request

    def add(request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        if (collected := sequences()) is not None:
            state = processor.request_states[request.request_id]
            if state.stats is not None:
                state.stats.__class__ = _detailed_stats()
            collected.append(state)

    processor.add_request = add


@cache
def _detailed_stats() -> type:
    """vLLM's class of a sequence's stats, with the slowest gap between tokens and the number of preemptions."""
    from vllm.v1.engine import EngineCoreEventType
    from vllm.v1.metrics.stats import IterationStats, RequestStateStats

    class DetailedStats(RequestStateStats):  # type: ignore[misc]  # vLLM has no types
        slowest_gap_s = 0.0
        preemptions = 0
        _last_token_ts = 0.0

        @property
        def last_token_ts(self) -> float:
            return self._last_token_ts

        @last_token_ts.setter
        def last_token_ts(self, now: float) -> None:
            before, self._last_token_ts = self._last_token_ts, now
            if before and now - before > self.slowest_gap_s:
                self.slowest_gap_s = now - before

    update_from_events = IterationStats.update_from_events

    def update(self: Any, req_id: str, events: Any, is_prefilling: bool, req_stats: Any, *args: Any) -> None:
        update_from_events(self, req_id, events, is_prefilling, req_stats, *args)
        if isinstance(req_stats, DetailedStats):
            req_stats.preemptions += sum(event.type == EngineCoreEventType.PREEMPTED for event in events)

    IterationStats.update_from_events = update
    return DetailedStats


def summarize(recording: Recording) -> RequestStats | None:
    """The stats of a request; None if the request did not reach the engine."""
    sequences = recording.sequences
    if not sequences:
        return None
    # The sequences of one prompt have the same parent; those without one have a prompt each.
    prompts = {id(each.parent_req) if each.parent_req else id(each): each for each in sequences}.values()
    prompt_stats = RequestStats(
        prompt_tokens=sum(each.prompt_len for each in prompts),
        cached_tokens=sum(each.num_cached_tokens for each in prompts),
        adapter_s=recording.adapter_s,
        blocked_s=recording.blocked_s,
        answers=len(sequences),
    )
    records = [each.stats for each in sequences if each.stats is not None]
    if not records:
        # With `disable_log_stats`, vLLM counts and times nothing.
        return prompt_stats
    return replace(
        prompt_stats,
        **_seconds(records, recording.started_at + recording.adapter_s),
        generated_tokens=sum(record.num_generation_tokens for record in records),
        finish_reason=_finish_reason(sequences[-1], recording.is_finished),
        slowest_gap_s=max(record.slowest_gap_s for record in records),
        preemptions=sum(record.preemptions for record in records),
    )


def _finish_reason(sequence: Any, is_finished: bool) -> FinishReason:
    if not is_finished:
        return "abort"
    if not sequence.stats.num_generation_tokens:
        return ""
    return "length" if sequence.stats.num_generation_tokens >= (sequence.max_tokens_param or 0) > 0 else "stop"


def _seconds(records: Sequence[Any], loaded_at: float) -> dict[str, Any]:
    """Seconds of each phase up to now; 0 for phases that have not begun.

    The first phase begins at `loaded_at`: when the request arrived, or its adapter was loaded.
    """
    queued, scheduled, first = (
        min((value for record in records if (value := getattr(record, name))), default=0.0)
        for name in ("queued_ts", "scheduled_ts", "first_token_ts")
    )
    last = max(record.last_token_ts for record in records)
    names = ("prepare_s", "queued_s", "prefill_s", "decode_s", "deliver_s")
    seconds, start = dict.fromkeys(names, 0.0), loaded_at
    for name, end in zip(names, (queued, scheduled, first, last, 0.0), strict=True):
        seconds[name] = max(0.0, (end or time.monotonic()) - start)
        if not end:
            break
        start = max(start, end)
    return seconds
