"""Stats of requests, from vLLM's own bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rayllm.request_stats import FinishReason, RequestStats


def collect(engine: Any, sequences: Callable[[], list[Any] | None]) -> None:
    """Collect vLLM's records of the sequences of each request.

    Args:
        engine: an AsyncLLM.
        sequences: returns the list of the current request; None if nobody wants its stats.
    """
    processor = engine.output_processor
    add_request = processor.add_request

    def add(request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        if (collected := sequences()) is not None:
            collected.append(processor.request_states[request.request_id])

    processor.add_request = add


def summarize(sequences: Sequence[Any], is_finished: bool) -> RequestStats | None:
    """The stats of a request; None if it has none, such as one that does not reach the engine.

    Args:
        sequences: vLLM's `RequestState` of each sequence.
        is_finished: whether the reply is complete.
    """
    if not sequences:
        return None
    # The sequences of one prompt have the same parent; those without one have a prompt each.
    prompts = {id(each.parent_req) if each.parent_req else id(each): each for each in sequences}.values()
    prompt_stats = RequestStats(
        prompt_tokens=sum(each.prompt_len for each in prompts),
        cached_tokens=sum(each.num_cached_tokens for each in prompts),
    )
    records = [each.stats for each in sequences if each.stats is not None]
    if not records:
        # With `disable_log_stats`, vLLM counts and times nothing.
        return prompt_stats
    queued_s, prefill_s, decode_s = _seconds(records)
    return replace(
        prompt_stats,
        generated_tokens=sum(record.num_generation_tokens for record in records),
        queued_s=queued_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        finish_reason=_finish_reason(sequences[-1], is_finished),
    )


def _finish_reason(sequence: Any, is_finished: bool) -> FinishReason:
    if not is_finished:
        return "abort"
    if not sequence.stats.num_generation_tokens:
        return ""
    return "length" if sequence.stats.num_generation_tokens >= (sequence.max_tokens_param or 0) > 0 else "stop"


def _seconds(records: Sequence[Any]) -> tuple[float, float, float]:
    """Seconds queued, in prefill and in decode, by the engine's clock; 0 for phases that have not begun."""
    queued, scheduled, first = (
        min((value for record in records if (value := getattr(record, name))), default=0.0)
        for name in ("queued_ts", "scheduled_ts", "first_token_ts")
    )
    last = max(record.last_token_ts for record in records)
    return (
        max(0.0, scheduled - queued) if scheduled else 0.0,
        max(0.0, first - scheduled) if first else 0.0,
        max(0.0, last - first) if first else 0.0,
    )
