"""Stats of requests, from the engine's records to the server of its application."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.engine.middleware.request_scope import (
    Recording,
    RequestScopeMiddleware,
    sequences_of_request,
    timing_adapter,
)
from rayllm.engine.vllm import request_stats as module
from rayllm.engine.vllm.request_stats import collect, summarize


def sequence(
    generated: int = 0, queued: float = 0, scheduled: float = 0, first: float = 0, last: float = 0, **keys: Any
) -> SimpleNamespace:
    """vLLM's record of a sequence with a prompt of 10 tokens, 4 of them cached."""
    stats = SimpleNamespace(
        num_generation_tokens=generated,
        queued_ts=queued,
        scheduled_ts=scheduled,
        first_token_ts=first,
        last_token_ts=last,
        slowest_gap_s=keys.pop("gap", 0.0),
        preemptions=keys.pop("preemptions", 0),
    )
    made = {"stats": stats, "prompt_len": 10, "num_cached_tokens": 4, "parent_req": None, "max_tokens_param": 8}
    return SimpleNamespace(**made | keys)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests arrive at 99 s of the monotonic clock and are summarized at 110 s."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 110.0))


def summary(*sequences: SimpleNamespace, is_finished: bool = True, **keys: Any) -> RequestStats | None:
    return summarize(Recording(99.0, list(sequences), is_finished=is_finished, **keys))


def seconds(stats: RequestStats | None) -> dict[str, float]:
    assert stats is not None
    return {name: value for name, value in stats.parts if value}


def test_a_request_without_sequences_has_none() -> None:
    assert summary() is None


def test_the_phases_follow_one_another() -> None:
    found = summary(
        sequence(5, queued=100, scheduled=101, first=103, last=107, gap=1.5, preemptions=2),
        adapter_s=0.25,
        blocked_s=0.5,
    )
    parts = {"adapter": 0.25, "prepare": 0.75, "queue": 1, "prefill": 2, "decode": 4, "deliver": 3}
    assert seconds(found) == parts
    assert found is not None
    assert found.total_s == 11
    assert found == RequestStats(10, 4, 5, 1, 2, 4, "stop", 1, 0.25, 0.75, 3, 0.5, 1.5, 2)


@pytest.mark.parametrize(
    ("record", "is_finished", "reason"),
    [
        (sequence(8), True, "length"),
        (sequence(7), True, "stop"),
        (sequence(7, max_tokens_param=None), True, "stop"),
        (sequence(8), False, "abort"),
        (sequence(0), False, "abort"),
        (sequence(0, max_tokens_param=None), True, ""),
    ],
)
def test_why_it_finished(record: SimpleNamespace, is_finished: bool, reason: str) -> None:
    found = summary(record, is_finished=is_finished)
    assert found is not None
    assert found.finish_reason == reason


def test_the_phase_that_has_begun_takes_the_time_until_now() -> None:
    assert seconds(summary(sequence(), is_finished=False)) == {"prepare": 11}
    assert seconds(summary(sequence(queued=100), is_finished=False)) == {"prepare": 1, "queue": 10}
    scheduled = sequence(queued=100, scheduled=102)
    assert seconds(summary(scheduled, is_finished=False)) == {"prepare": 1, "queue": 2, "prefill": 8}


def test_answers_to_one_prompt_count_it_once() -> None:
    parent = object()
    found = summary(
        sequence(3, queued=100, scheduled=101, first=102, last=103, parent_req=parent, gap=0.5),
        sequence(5, queued=100, scheduled=104, first=105, last=106, parent_req=parent, gap=0.75),
        sequence(1, queued=99, scheduled=107, first=108, last=109),
    )
    assert found is not None
    assert (found.prompt_tokens, found.cached_tokens, found.generated_tokens, found.answers) == (20, 8, 9, 3)
    assert seconds(found) == {"queue": 2, "prefill": 1, "decode": 7, "deliver": 1}
    assert found.slowest_gap_s == 0.75


def test_without_vllms_stats_only_the_prompt_is_known() -> None:
    assert summary(sequence(stats=None)) == RequestStats(10, 4, answers=1)


def test_the_mean_time_between_tokens_is_that_of_one_answer() -> None:
    assert RequestStats(generated_tokens=11, answers=1, decode_s=5.0).seconds_per_token == 0.5
    assert RequestStats(generated_tokens=22, answers=2, decode_s=5.0).seconds_per_token == 0.5
    assert RequestStats(generated_tokens=1, answers=1).seconds_per_token is None
    assert RequestStats().seconds_per_token is None


class Processor:
    """Stands for vLLM's `OutputProcessor`."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: str | None) -> None:
        self.request_states[request.request_id] = SimpleNamespace(id=request.request_id, prompt=prompt, stats=None)


def test_each_request_has_its_own_sequences() -> None:
    wanted: list[Any] | None = []
    engine = SimpleNamespace(output_processor=Processor())
    collect(engine, lambda: wanted)
    engine.output_processor.add_request(SimpleNamespace(request_id="a"), "x")
    assert [(each.id, each.prompt) for each in wanted] == [("a", "x")]
    wanted = None
    engine.output_processor.add_request(SimpleNamespace(request_id="b"), "y")
    assert engine.output_processor.request_states["b"].prompt == "y"


async def ask(app: Any, source: StatsSource | None) -> list[Any]:
    scope: dict[str, Any] = {"type": "http", "extensions": {"other": 1}}
    if source:
        source.add_to(scope)
        assert scope["extensions"]["other"] == 1
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append((message["type"], source.read() if source else None))

    await app(scope, None, send)
    return sent


async def application(scope: Any, receive: Any, send: Any) -> None:
    sequences = sequences_of_request()
    if sequences is not None:
        sequences.append("one")
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


async def test_the_server_reads_the_stats_when_it_wants() -> None:
    seen: list[Any] = []

    def summary(recording: Recording) -> RequestStats:
        seen.append((list(recording.sequences), recording.is_finished))
        return RequestStats(len(seen))

    app = RequestScopeMiddleware(application, summary)
    source = StatsSource()
    assert source.read() is None
    sent = await ask(app, source)
    assert [stats.prompt_tokens for _, stats in sent] == [1, 2, 3]
    assert seen == [(["one"], False), (["one"], False), (["one"], True)]


async def test_adapters_and_slow_clients_are_timed() -> None:
    recordings: list[Recording] = []

    async def loads_an_adapter(scope: Any, receive: Any, send: Any) -> None:
        with timing_adapter():
            await asyncio.sleep(0.02)
        await application(scope, receive, send)

    def keep(recording: Recording) -> None:
        recordings.append(recording)

    source = StatsSource()
    scope: dict[str, Any] = {"type": "http"}
    source.add_to(scope)

    async def slow(message: Any) -> None:
        await asyncio.sleep(0.01)

    await RequestScopeMiddleware(loads_an_adapter, keep)(scope, None, slow)  # type: ignore[arg-type]
    source.read()
    assert recordings[0].adapter_s >= 0.02
    assert recordings[0].blocked_s >= 0.03


async def test_a_server_that_wants_none_costs_nothing() -> None:
    app = RequestScopeMiddleware(application, lambda recording: pytest.fail("not wanted"))
    assert await ask(app, None) == [(kind, None) for kind in ("http.response.start", *["http.response.body"] * 2)]


def test_they_travel_as_json() -> None:
    stats = RequestStats(1, 2, 3, 0.5, 0.25, 0.125, "length")
    assert RequestStats.from_json(stats.as_json()) == stats
    assert RequestStats.from_json({"prompt_tokens": 7, "from_a_newer_version": 1}) == RequestStats(7)
