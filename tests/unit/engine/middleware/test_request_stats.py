"""Stats of requests, from the engine's records to the server of its application."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.engine.middleware.request_stats import RequestStatsMiddleware, sequences_of_request
from rayllm.engine.vllm.request_stats import collect, summarize
from rayllm.request_stats import RequestStats, StatsSource


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
    )
    made = {"stats": stats, "prompt_len": 10, "num_cached_tokens": 4, "parent_req": None, "max_tokens_param": 8}
    return SimpleNamespace(**made | keys)


def test_a_request_without_sequences_has_none() -> None:
    assert summarize([], True) is None


def test_the_phases_follow_one_another() -> None:
    found = summarize([sequence(5, queued=100, scheduled=101, first=103, last=107)], True)
    assert found == RequestStats(10, 4, 5, 1, 2, 4, "stop")


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
    found = summarize([record], is_finished)
    assert found is not None
    assert found.finish_reason == reason


def test_phases_that_have_not_begun_take_no_time() -> None:
    assert summarize([sequence(queued=100)], False) == RequestStats(10, 4, 0, 0, 0, 0, "abort")
    assert summarize([sequence(queued=100, scheduled=102)], False) == RequestStats(10, 4, 0, 2, 0, 0, "abort")


def test_answers_to_one_prompt_count_it_once() -> None:
    parent = object()
    answers = [
        sequence(3, queued=100, scheduled=101, first=102, last=103, parent_req=parent),
        sequence(5, queued=100, scheduled=104, first=105, last=106, parent_req=parent),
        sequence(1, queued=99, scheduled=107, first=108, last=109),
    ]
    assert summarize(answers, True) == RequestStats(20, 8, 9, 2, 1, 7, "stop")


def test_without_vllms_stats_only_the_prompt_is_known() -> None:
    assert summarize([sequence(stats=None)], True) == RequestStats(10, 4)


class Processor:
    """Stands for vLLM's `OutputProcessor`."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: str | None) -> None:
        self.request_states[request.request_id] = (request.request_id, prompt)


def test_each_request_has_its_own_sequences() -> None:
    wanted: list[Any] | None = []
    engine = SimpleNamespace(output_processor=Processor())
    collect(engine, lambda: wanted)
    engine.output_processor.add_request(SimpleNamespace(request_id="a"), "x")
    assert wanted == [("a", "x")]
    wanted = None
    engine.output_processor.add_request(SimpleNamespace(request_id="b"), "y")
    assert engine.output_processor.request_states["b"] == ("b", "y")


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

    def summary(sequences: list[Any], is_finished: bool) -> RequestStats:
        seen.append((list(sequences), is_finished))
        return RequestStats(len(seen))

    app = RequestStatsMiddleware(application, summary)
    source = StatsSource()
    assert source.read() is None
    sent = await ask(app, source)
    assert [stats.prompt_tokens for _, stats in sent] == [1, 2, 3]
    assert seen == [(["one"], False), (["one"], False), (["one"], True)]


async def test_a_server_that_wants_none_costs_nothing() -> None:
    app = RequestStatsMiddleware(application, lambda sequences, is_finished: pytest.fail("not wanted"))
    assert await ask(app, None) == [(kind, None) for kind in ("http.response.start", *["http.response.body"] * 2)]


def test_they_travel_as_json() -> None:
    stats = RequestStats(1, 2, 3, 0.5, 0.25, 0.125, "length")
    assert RequestStats.of(stats.as_json()) == stats
    assert RequestStats.of({"prompt_tokens": 7, "from_a_newer_version": 1}) == RequestStats(7)
