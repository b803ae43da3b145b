"""Stats and metrics for routers that reach a replica by HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rayllm.headers import METRICS_PATH, STATS
from rayllm.request_stats import STATS_COMMENT, RequestStats, StatsSource
from rayllm.serving.replica.middleware import MetricsGate, StatsTrailer

FOUND = RequestStats(3, 1, 5)


def application(content_type: str, *chunks: bytes, stats: RequestStats | None = FOUND) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        source = StatsSource.of(scope)
        assert source
        source.read = lambda: stats
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for index, chunk in enumerate(chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": index < len(chunks) - 1})

    return app


async def get(app: Any, path: str = "/") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://replica") as client:
        return await client.get(path)


async def test_a_whole_reply_has_them_in_a_header() -> None:
    reply = await get(StatsTrailer(application("application/json", b"{}")))
    assert (reply.content, RequestStats.of(json.loads(reply.headers[STATS]))) == (b"{}", FOUND)


@pytest.mark.parametrize("chunks", [(b"data: a\n\n", b"data: b\n\n", b""), (b"data: a\n\ndata: b\n\n",)])
async def test_a_stream_has_them_in_a_comment_at_its_end(chunks: tuple[bytes, ...]) -> None:
    reply = await get(StatsTrailer(application("text/event-stream; charset=utf-8", *chunks)))
    events, _, text = reply.content.partition(STATS_COMMENT)
    assert events == b"data: a\n\ndata: b\n\n"
    assert RequestStats.of(json.loads(text)) == FOUND
    assert STATS not in reply.headers


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_a_request_that_reached_no_engine_has_none(content_type: str) -> None:
    reply = await get(StatsTrailer(application(content_type, b"x", b"y", stats=None)))
    assert reply.content == b"xy"
    assert STATS not in reply.headers


async def test_other_replies_in_parts_stay_as_they_are() -> None:
    reply = await get(StatsTrailer(application("audio/wav", b"a", b"b")))
    assert reply.content == b"ab"


async def test_metrics_are_those_of_the_process_with_its_labels() -> None:
    reply = await get(MetricsGate(application("text/plain"), {"model": "m", "replica": "r"}), METRICS_PATH)
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    [info] = families["python_info"].samples
    assert (info.labels["model"], info.labels["replica"]) == ("m", "r")
