"""A stream that is sent in windows, after guards have been asked about the text of each window."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from rayllm.serving.router.requests.texts import delta_texts

# Most bytes of events kept back, whatever the length of their text.
_MAX_KEPT = 1 << 20


class GuardedStream:
    """Keeps the events of a stream back until there is enough text to ask about.

    Guards are asked about each answer in the stream separately, a window together with the end of the last window.
    """

    def __init__(self, window: int, check: Callable[[str], Awaitable[None]]) -> None:
        self._window = window
        self._check = check
        self._rest = b""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        # By answer: the end of the text asked about, and the text not asked about yet.
        self._asked: dict[str, str] = {}
        self._new: dict[str, str] = {}

    async def feed(self, chunk: bytes) -> AsyncIterator[bytes]:
        """Consume bytes of the stream; yields bytes to send, window by window."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            self._keep(event)
            if self._is_enough():
                yield await self._release()

    async def end(self) -> bytes:
        """End the stream; returns the last bytes to send. An incomplete event is dropped."""
        return await self._release()

    def _keep(self, event: bytes) -> None:
        try:
            found = list(deltas(event))
        except ValueError:
            # The replica broke off within the event.
            return
        for answer, text in found:
            self._new[answer] = self._new.get(answer, "") + text
        self._kept.append(event + b"\n\n")
        self._kept_bytes += len(event)

    def _is_enough(self) -> bool:
        # Events without text wait for the text before them, and for the first text, which decides the status.
        has_only_marks = self._asked and not self._new
        is_full = sum(map(len, self._new.values())) >= self._window or self._kept_bytes >= _MAX_KEPT
        return bool(has_only_marks or is_full)

    async def _release(self) -> bytes:
        for answer, text in self._new.items():
            whole = self._asked.get(answer, "") + text
            await self._check(whole)
            self._asked[answer] = whole[-self._window :]
        self._new.clear()
        released = b"".join(self._kept)
        self._kept, self._kept_bytes = [], 0
        return released


def deltas(event: bytes) -> Iterator[tuple[str, str]]:
    """The texts in an event of any API, each with a key of its answer."""
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
