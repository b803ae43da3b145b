"""A load of requests: when they are sent, what is seen of each, and what the figures say of them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from rayllm.client.api.address import Address
from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import CHAT, Server
from rayllm.client.benchmark.goodput import LatencyTargets
from rayllm.client.benchmark.load import Load, RequestTrace, poisson_arrivals
from rayllm.client.benchmark.report import Report
from rayllm.errors import ConfigError
from tests.servers.openai import OpenAIServer, Script, chunk

TOKENS = 5
BUSY = Script(503, {"error": {"message": "Full.", "code": "overloaded"}})


def bodies(count: int, **more: Any) -> list[bytes]:
    request = {
        "model": "small",
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    return [json.dumps({**request, **more}).encode()] * count


async def run(
    served: OpenAIServer,
    requests: Sequence[bytes],
    concurrency: int | None = 2,
    arrivals: Sequence[float] | None = None,
) -> Load:
    async with Server(Address.parse(served.url)) as server:
        load = Load(server, CHAT, requests, concurrency, arrivals)
        await load.run()
    return load


async def test_all_requests_are_sent_and_what_came_is_seen(served: OpenAIServer) -> None:
    load = await run(served, bodies(7))
    assert [trace.index for trace in load.traces] == list(range(7))
    assert load.peak_concurrency == 2
    for trace in load.traces:
        assert (trace.is_complete, trace.output_tokens, trace.input_tokens) == (True, TOKENS, 8)
        assert len(trace.token_times) == TOKENS
        assert 0 < trace.ttft_s < trace.e2e_s <= load.duration_s
        assert trace.ttft_s + sum(trace.gaps_s) == pytest.approx(trace.token_times[-1] - (trace.sent_s or 0))
        assert trace.tpot_s == pytest.approx((trace.e2e_s - trace.ttft_s) / (TOKENS - 1))


async def test_an_open_loop_sends_when_it_is_time_and_does_not_wait_for_answers(served: OpenAIServer) -> None:
    served.script(*[Script(events=(chunk(content="a"),), waits=True)] * 3)
    async with Server(Address.parse(served.url)) as server:
        load = Load(server, CHAT, bodies(3), None, [0.0, 0.05, 0.1])
        running = asyncio.create_task(load.run())
        while load.peak_concurrency < 3:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
    assert [trace.due_s for trace in load.traces] == [0.0, 0.05, 0.1]
    assert all((trace.sent_s or 0) >= trace.due_s for trace in load.traces)
    report = Report(load, 3)
    assert (len(report.completed), len(report.failed), report.unfinished) == (0, 0, 3)


async def test_an_open_loop_may_have_a_limit(served: OpenAIServer) -> None:
    load = await run(served, bodies(4), 1, [0.0] * 4)
    assert load.peak_concurrency == 1
    assert Report(load, 4).late_ms.percentile(100) > 0


async def test_failures_stay_in_the_figures(served: OpenAIServer) -> None:
    broken = Script(events=(chunk(role="assistant", content=""), chunk(content="a")), breaks=True)
    empty = Script(events=(chunk(role="assistant", content=""), chunk("stop")))
    served.script(BUSY, broken, empty, BUSY)
    report = Report(await run(served, bodies(6), 1), 6, LatencyTargets.parse("ttft:60000"))
    assert (len(report.completed), len(report.failed), report.unfinished) == (2, 4, 0)
    assert [(each.count, each.reason) for each in report.failures()] == [
        (2, "503 overloaded"),
        (1, "the connection was lost"),
        (1, "a completion without a token"),
    ]
    summary = report.as_json([50])
    assert summary["goodput"]["share"] == pytest.approx(2 / 6)
    assert summary["total_output_tokens"] == 2 * TOKENS
    assert [row["error"] is None for row in summary["rows"]] == [False, False, False, False, True, True]
    assert summary["rows"][1]["chunks"] == 1
    assert "ttft_ms" not in summary["rows"][1]


async def test_a_server_that_does_not_count_is_counted_by_chunks(served: OpenAIServer) -> None:
    served.tells_usage = False
    report = Report(await run(served, bodies(2)), 2)
    assert (report.output_tokens, report.has_usage, report.input_tokens) == (2 * TOKENS, False, None)
    assert report.as_json([50])["output_tokens_from"] == "chunks"


async def test_tokens_that_come_together_are_noticed(served: OpenAIServer) -> None:
    events = (chunk(content="a"), chunk("stop", content="b"), {"choices": [], "usage": {"completion_tokens": 8}})
    served.script(Script(events=events))
    report = Report(await run(served, bodies(1)), 1)
    assert (report.output_tokens, report.tokens_per_chunk) == (8, 4)


async def test_where_all_failed_there_are_no_latencies(served: OpenAIServer) -> None:
    served.script(BUSY, BUSY)
    summary = Report(await run(served, bodies(2)), 2).as_json([50, 99])
    assert summary["ttft_ms"] == {"mean": None, "std": None, "p50": None, "p99": None}
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


async def test_the_timeline_holds_all_tokens(served: OpenAIServer) -> None:
    load = await run(served, bodies(4))
    times, rates = Report(load, 4).timeline()
    assert sum(rates) * (times[1] - times[0]) == pytest.approx(4 * TOKENS)


def test_poisson_arrivals_have_the_rate_and_come_by_chance() -> None:
    times = poisson_arrivals(1000, 50, seed=1)
    gaps = [later - sooner for sooner, later in zip([0.0, *times], times, strict=False)]
    assert times[-1] == pytest.approx(20)
    assert times == sorted(times)
    # Of an exponential distribution, mean and deviation are the same.
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation / mean == pytest.approx(1, abs=0.1)
    assert poisson_arrivals(1000, 50, seed=1) == times != poisson_arrivals(1000, 50, seed=2)


def trace(*token_times: float, last: float) -> RequestTrace:
    usage = {"completion_tokens": len(token_times)}
    return RequestTrace(0, 0.0, 1.0, list(token_times), last, usage, is_complete=True)


@pytest.mark.parametrize(
    ("limits", "is_good"),
    [
        ("ttft:125", True),
        ("ttft:124", False),
        ("itl:250", True),
        ("itl:249", False),
        ("tpot:312.5", True),
        ("tpot:312", False),
        ("e2e:750", True),
        ("e2el:749", False),
        ("ttft:125,itl:250, e2e:750", True),
        ("ttft:125 itl:250 e2e:749", False),
    ],
)
def test_a_good_request_keeps_to_all_limits(limits: str, is_good: bool) -> None:
    # The first token after 125 ms, gaps of 125 and 375 ms, and the end 625 ms after the first of three tokens.
    assert LatencyTargets.parse(limits).are_met(trace(1.125, 1.25, 1.625, last=1.75)) is is_good


def test_what_failed_is_not_good_and_one_token_has_no_gaps() -> None:
    assert LatencyTargets.parse("itl:1,tpot:1").are_met(trace(1.1, last=1.1))
    failed = RequestTrace(0, 0.0, 1.0, [1.1], 1.1, failure=ServerError("a", "b"))
    assert not LatencyTargets.parse("ttft:1000").are_met(failed)


@pytest.mark.parametrize("text", ["", "ttft", "ttft:0", "ttft:-1", "ttft:nan", "other:1", "ttft:1,ttft:2", "ttft:1:2"])
def test_limits_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        LatencyTargets.parse(text)
