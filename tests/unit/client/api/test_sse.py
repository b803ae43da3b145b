"""Server-sent events, however their bytes come."""

from __future__ import annotations

import pytest

from rayllm.client.api.sse import EventReader

STREAM = b': ping\n\ndata: {"a": 1}\n\nevent: x\r\ndata: one\r\ndata:two\r\nid: 3\r\n\r\ndata:\n\ndata: [DONE]\n\n'
DATA = [b'{"a": 1}', b"one\ntwo", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_read_whole_whatever_the_pieces(size: int) -> None:
    reader = EventReader()
    found = [data for at in range(0, len(STREAM), size) for data in reader.feed(STREAM[at : at + size])]
    assert found == DATA


def test_an_event_that_has_not_ended_is_kept_back() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\ndata: b") == [b"a"]
