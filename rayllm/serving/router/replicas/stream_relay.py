"""Passing a replica's stream on to the client, and going on with it from another replica."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from rayllm.core.error_shapes import error_event
from rayllm.core.errors import EngineError
from rayllm.core.request_stats import RequestStats
from rayllm.core.stream_journal import JournalError, StreamJournal
from rayllm.serving.relay import Frame, FrameReader
from rayllm.serving.router.replicas.errors import ReplicaLostError
from rayllm.serving.router.replicas.http_transport import Reply
from rayllm.serving.router.requests.client_request import ClientRequest

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class StreamRelay:
    """Passes one replica's stream on.

    Args:
        journal: what the client has got so far; None if no other replica is to go on.
    """

    client: ClientRequest
    reply: Reply
    reply_headers: Mapping[str, str]
    journal: StreamJournal | None

    def __post_init__(self) -> None:
        self._guarded = self.client.reply_guard.stream() if self.client.reply_guard else None
        self._frames = FrameReader()
        self._is_whole = False

    async def run(self, first: bytes) -> bool:
        """Pass the stream on, in windows if a guard is asked about it. Returns whether it was complete.

        Raises:
            ReplicaLostError: the replica broke off, and another one can go on.
        """
        try:
            take = self._take if self.reply.is_framed else self._send
            await take(first)
            async for chunk in self.reply.content.iter_any():
                await take(chunk)
            # A replica of a version without frames tells the end by that of the body.
            self._is_whole = self._is_whole or not self.reply.is_framed
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("A replica broke off in the middle of a stream: %r", error)
        except JournalError as error:
            logger.error("A stream cannot be continued: %s.", error)
            self.journal = None
        if not self._is_whole:
            await self._break_off()
        rest = await self._guarded.end() if self._guarded else b""
        await self._pass_on(rest, is_last=True)
        return self._is_whole

    async def _take(self, chunk: bytes) -> None:
        for kind, content in self._frames.feed(chunk):
            if kind is Frame.EVENTS:
                await self._send(content)
            elif kind is Frame.STATS:
                self.client.record.stats = RequestStats.of(json.loads(content))
            elif kind is Frame.END:
                if self.journal:
                    self.journal.unsent(b"", is_last=True)
                self._is_whole = True
            elif self.journal:
                _record(self.journal, kind, content)

    async def _break_off(self) -> None:
        if self.journal and self.journal.is_continuable:
            self.client.record.continuations += 1
            raise ReplicaLostError
        self.journal = None
        await self._send(b"\n\n" + interrupted_event(self.client.path))

    async def _send(self, events: bytes) -> None:
        if self._guarded is None:
            await self._pass_on(events)
            return
        async for released in self._guarded.feed(events):
            await self._pass_on(released)

    async def _pass_on(self, events: bytes, is_last: bool = False) -> None:
        if self.journal:
            events = self.journal.unsent(events, is_last=False)
        if not events and not is_last:
            return
        await self.client.start_stream(self.reply.status, self.reply_headers)
        await self.client.relay_chunk(events, is_last)


def _record(journal: StreamJournal, kind: Frame, content: bytes) -> None:
    if kind is Frame.NOT_CONTINUABLE:
        journal.open(is_continuable=False)
        return
    if not journal.is_recording:
        journal.open(is_continuable=True)
    journal.add_token_bytes(content)


def interrupted_event(path: str) -> bytes:
    """The last event of a stream that no replica goes on with."""
    return error_event(EngineError("The model's replica broke off in the middle of its answer."), path)
