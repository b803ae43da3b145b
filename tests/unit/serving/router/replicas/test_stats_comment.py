from __future__ import annotations

import json

import pytest

from rayllm.request_stats import STATS_COMMENT, RequestStats
from rayllm.serving.router.replicas.stats_comment import StatsComment

STATS = RequestStats(3, 1, 5, 0.5, 0.25, 2.0, "stop")
EVENTS = b"data: {}\n\n: a comment\n\ndata: [DONE]\n\n"
COMMENT = STATS_COMMENT + json.dumps(STATS.as_json()).encode() + b"\n\n"


def strip(*chunks: bytes) -> tuple[bytes, RequestStats | None]:
    comment = StatsComment()
    passed = b"".join(comment.strip(chunk) for chunk in chunks)
    stats, rest = comment.end()
    return passed + rest, stats


@pytest.mark.parametrize("events", [EVENTS, b"", b"data: a\r\n\r\ndata: b\n\n"])
def test_it_is_removed_however_the_stream_is_cut(events: bytes) -> None:
    whole = events + COMMENT
    for first in range(len(whole) + 1):
        for second in range(first, min(first + 30, len(whole)) + 1):
            assert strip(whole[:first], whole[first:second], whole[second:]) == (events, STATS)
    assert strip(*(whole[index : index + 1] for index in range(len(whole)))) == (events, STATS)


def test_events_are_passed_on_at_once() -> None:
    comment = StatsComment()
    assert comment.strip(b"data: {}\n\n") == b"data: {}\n\n"
    assert comment.strip(b": waiting\n\n") == b": waiting\n\n"
    assert comment.strip(b"data: half") == b"data: half"


@pytest.mark.parametrize(
    "events", [EVENTS, b"data: cut off", b"", b"data: {}\n\n: ray", b"data: : rayllm-stats {}\n\n"]
)
def test_a_stream_without_it_stays_whole(events: bytes) -> None:
    for cut in range(len(events) + 1):
        assert strip(events[:cut], events[cut:]) == (events, None)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'"x"', b'{"prompt_tokens'])
def test_rubbish_in_it_is_dropped(text: bytes) -> None:
    assert strip(EVENTS + STATS_COMMENT + text) == (EVENTS, None)
