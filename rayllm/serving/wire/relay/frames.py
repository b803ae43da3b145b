"""Frames of a relayed stream: events, the tokens behind the events, and the stats."""

import struct
from collections.abc import Iterator
from enum import IntEnum

_HEAD = struct.Struct("!BI")


class Frame(IntEnum):
    """The kinds of frames."""

    EVENTS = 1
    """Part of the stream of events, for the client."""
    TOKENS = 2
    """Tokens for the journal, before the events that come from them; see `StreamJournal.token_bytes`."""
    NOT_CONTINUABLE = 3
    """No other replica can continue this stream."""
    STATS = 4
    """The stats of the request until now, as JSON; complete before the end, unless there are none."""
    END = 5
    """The stream is complete."""


def encode(kind: Frame, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(content)) + content


class FrameReader:
    """Finds the frames in a stream of bytes, however the stream is cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[Frame, bytes]]:
        """Read the next bytes; yields the frames that are complete."""
        data, position = self._rest + chunk, 0
        while len(data) - position >= _HEAD.size:
            kind, size = _HEAD.unpack_from(data, position)
            end = position + _HEAD.size + size
            if len(data) < end:
                break
            yield Frame(kind), data[position + _HEAD.size : end]
            position = end
        self._rest = data[position:]
