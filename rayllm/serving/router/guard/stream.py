"""A stream that is released in windows, once guards have been asked about their text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from rayllm.serving.router.requests.texts import delta_texts

# Bytes of events held back, whatever the length of their text.
_MAX_HELD = 1 << 20


class GuardedStream:
    """Holds the events of a stream back until enough text has come to ask about.

    Each answer in the stream is asked about by itself, a window together with the end of what came before.
    """

    def __init__(self, window: int, check: Callable[[str], Awaitable[None]]) -> None:
        self._window = window
        self._check = check
        self._rest = b""
        self._held: list[bytes] = []
        self._held_bytes = 0
        # By answer: the end of what has been asked about, and what has not.
        self._asked: dict[str, str] = {}
        self._new: dict[str, str] = {}

    async def feed(self, chunk: bytes) -> AsyncIterator[bytes]:
        """Take the next bytes of the stream; returns those to send, window by window."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            self._hold(event)
            if self._is_enough():
                yield await self._release()

    async def end(self) -> bytes:
        """The stream has ended; returns the bytes that are left. An event that is not whole is dropped."""
        return await self._release()

    def _hold(self, event: bytes) -> None:
        try:
            found = list(deltas(event))
        except ValueError:
            # A replica broke off in the middle of it.
            return
        for answer, text in found:
            self._new[answer] = self._new.get(answer, "") + text
        self._held.append(event + b"\n\n")
        self._held_bytes += len(event)

    def _is_enough(self) -> bool:
        # Events without text wait behind those with text, and for the first, before which the reply has no status.
        has_only_marks = self._asked and not self._new
        is_full = sum(map(len, self._new.values())) >= self._window or self._held_bytes >= _MAX_HELD
        return bool(has_only_marks or is_full)

    async def _release(self) -> bytes:
        for answer, text in self._new.items():
            whole = self._asked.get(answer, "") + text
            await self._check(whole)
            self._asked[answer] = whole[-self._window :]
        self._new.clear()
        released = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        return released


def deltas(event: bytes) -> Iterator[tuple[str, str]]:
    """The texts in an event of any of the APIs, each with what tells its answer from others."""
    for line in event.split(b"\n"):
        data = line.removeprefix(b"data:").strip()
        if data != line.strip() and data.startswith(b"{"):
            yield from _deltas_in(json.loads(data))


def _deltas_in(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    choices = event.get("choices")
    if isinstance(choices, list):
        # Chats and completions.
        for choice in choices:
            parts = choice.get("delta") if "delta" in choice else choice.get("text")
            for text in delta_texts(parts):
                yield f"{choice.get('index')}", text
    elif "delta" in event:
        # Events of the Responses and the Messages API that repeat text come after its deltas.
        place = [event.get(name) for name in ("output_index", "content_index", "summary_index", "index")]
        for text in delta_texts(event["delta"]):
            yield f"{event.get('type')} {place}", text
