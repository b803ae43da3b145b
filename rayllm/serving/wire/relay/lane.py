"""The relay: the router sends the request to a replica by HTTP, and writes the reply to the client."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from starlette.responses import Response

from rayllm.core import headers
from rayllm.core.request_stats import RequestStats
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.journal import JournalError, StreamJournal
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome, check_refusal, interrupted, interrupted_event
from rayllm.serving.wire.relay.frames import Frame, FrameReader
from rayllm.serving.wire.relay.transport import Address, HttpTransport, Reply

logger = logging.getLogger(__name__)


async def relay(exchange: Exchange, replica: Address, transport: HttpTransport) -> Outcome:
    """Have a replica answer an exchange by HTTP.

    Raises:
        NotAnsweredError: another replica may answer.
        UnavailableError, EngineError, RefusedError, GuardError: see `Wire.send`.
    """
    request = exchange.for_replica
    journal = _open_journal(exchange) if request.is_stream and not exchange.reply_guard else None
    replica_headers, body = {**request.headers, headers.FRAMES: "1"}, request.body
    if journal:
        tokens = journal.token_bytes()
        replica_headers[headers.JOURNAL] = json.dumps({**journal.description, "token_bytes": len(tokens)})
        body = tokens + body
    async with transport.send(replica, exchange.request.method, exchange.path, body, replica_headers) as reply:
        try:
            first = await (reply.content.readany() if reply.is_stream else reply.content.read())
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("A replica of `%s` broke off: %r", request.model_id, error)
            raise NotAnsweredError(Outcome.LOST) from None
        if reply.status >= 400:
            check_refusal(request.model_id, reply.status, reply.headers.get("content-type", ""), first)
        exchange.began()
        return await _pass_on(exchange, reply, first, journal)


def _open_journal(exchange: Exchange) -> StreamJournal | None:
    try:
        return exchange.open_relay_journal()
    except JournalError as error:
        logger.error("A stream cannot be continued: %s.", error)
        raise interrupted() from None


async def _pass_on(exchange: Exchange, reply: Reply, first: bytes, journal: StreamJournal | None) -> Outcome:
    exchange.record.stats = reply.stats
    if reply.is_stream:
        return await _StreamRelay(exchange, reply, {**reply.headers, "cache-control": "no-cache"}, journal).run(first)
    if exchange.reply_guard and reply.status == 200:
        await exchange.reply_guard.check_whole(first)
    await exchange.send_response(Response(first, reply.status, reply.headers))
    return Outcome.ANSWERED if reply.status < 500 else Outcome.ERROR


@dataclass(eq=False)
class _StreamRelay:
    """Passes one replica's stream on.

    Args:
        reply_headers: for the client.
        journal: what the client has got so far; None if no other replica is to continue.
    """

    exchange: Exchange
    reply: Reply
    reply_headers: Mapping[str, str]
    journal: StreamJournal | None

    def __post_init__(self) -> None:
        self._guarded = self.exchange.reply_guard.stream() if self.exchange.reply_guard else None
        self._frames = FrameReader()
        self._is_whole = False

    async def run(self, first: bytes) -> Outcome:
        """Pass the stream on, in windows if a guard checks the reply.

        Raises NotAnsweredError if the replica broke off, and another one can continue.
        """
        try:
            receive = self._receive_frames if self.reply.is_framed else self._send
            await receive(first)
            async for chunk in self.reply.content.iter_any():
                await receive(chunk)
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
        self.exchange.ended(self._is_whole)
        return Outcome.ANSWERED if self._is_whole else Outcome.ERROR

    async def _receive_frames(self, chunk: bytes) -> None:
        for kind, content in self._frames.feed(chunk):
            if kind is Frame.EVENTS:
                await self._send(content)
            elif kind is Frame.STATS:
                self.exchange.record.stats = RequestStats.from_json(json.loads(content))
            elif kind is Frame.END:
                if self.journal:
                    self.journal.unsent(b"", is_last=True)
                self._is_whole = True
            elif self.journal:
                _log(self.journal, kind, content)

    async def _break_off(self) -> None:
        if self.journal and self.journal.is_continuable:
            self.exchange.record.continuations += 1
            raise NotAnsweredError(Outcome.LOST)
        self.journal = None
        await self._send(b"\n\n" + interrupted_event(self.exchange.path))

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
        await self.exchange.start_stream(self.reply.status, self.reply_headers)
        await self.exchange.relay(events, is_last)


def _log(journal: StreamJournal, kind: Frame, content: bytes) -> None:
    if kind is Frame.NOT_CONTINUABLE:
        journal.open(is_continuable=False)
        return
    if not journal.is_logging:
        journal.open(is_continuable=True)
    journal.add_token_bytes(content)
