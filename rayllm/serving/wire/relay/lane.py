"""The relay: the router sends the request to a replica by HTTP, and writes the reply to the client."""

from __future__ import annotations

import json
import logging

import aiohttp
from starlette.responses import Response

from rayllm.core import headers
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.journal import JournalError, StreamJournal
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome
from rayllm.serving.wire.refusals import check_refusal, interrupted
from rayllm.serving.wire.relay.stream import StreamRelay
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
            check_refusal(request.model_id, reply.status, reply.content_type, first)
        exchange.began()
        return await _pass_on(exchange, reply, first, journal)


def _open_journal(exchange: Exchange) -> StreamJournal | None:
    try:
        return exchange.open_relay_journal()
    except JournalError as error:
        logger.error("A stream cannot be continued: %s.", error)
        raise interrupted() from None


async def _pass_on(exchange: Exchange, reply: Reply, first: bytes, journal: StreamJournal | None) -> Outcome:
    kept = dict(reply.headers)
    if reply.content_type:
        kept["content-type"] = reply.content_type
    exchange.record.stats = reply.stats
    if reply.is_stream:
        return await StreamRelay(exchange, reply, {**kept, "cache-control": "no-cache"}, journal).run(first)
    if exchange.reply_guard and reply.status == 200:
        await exchange.reply_guard.check_whole(first)
    await exchange.send_response(Response(first, reply.status, kept))
    return Outcome.ANSWERED if reply.status < 500 else Outcome.ERROR
