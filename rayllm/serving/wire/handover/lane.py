"""The handover: a replica on this node answers on the client's connection."""

import asyncio
import logging
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rayllm.core.headers import FOR_CLIENTS
from rayllm.serving.wire.connection import Connection
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.handover.channel import Interruption
from rayllm.serving.wire.handover.sender import End, Handover, ReplicaGoneError, Sender
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome, check_refusal, check_turned_away, interrupted_event

logger = logging.getLogger(__name__)


async def hand_over(exchange: Exchange, replica_id: str, sender: Sender) -> Outcome | None:
    """Have a replica answer an exchange on the client's connection. None if this connection or socket allows none.

    Raises NotAnsweredError if another replica may answer, and otherwise as `Wire.send`.
    """
    connection = exchange.connection
    if connection is None:
        return None
    try:
        handover = _start(exchange, connection, sender)
    except ReplicaGoneError:
        raise NotAnsweredError(Outcome.DRAINING) from None
    except OSError as error:
        logger.warning("The replica %s does not accept handovers; using HTTP: %r", replica_id, error)
        return None
    end = await _await_end(exchange, connection, sender, handover)
    return await _conclude(exchange, connection, handover, end)


def _start(exchange: Exchange, connection: Connection, sender: Sender) -> Handover:
    request = exchange.for_replica
    head: dict[str, Any] = {
        "method": exchange.request.method,
        "path": exchange.path,
        "headers": {**request.headers, "content-length": str(len(request.body))},
        "reply_headers": {**connection.reply_headers, **exchange.reply_headers},
        "keeps_alive": connection.keeps_alive,
        "send_timeout_s": connection.send_timeout_s,
    }
    if exchange.wants_timing:
        head["timing"] = exchange.timing()
    journal = exchange.open_journal() if request.is_stream else None
    if journal is None:
        return sender.hand_over(connection.socket, head, request.body)
    head["journal"] = journal.description
    return sender.hand_over(connection.socket, head, request.body, journal.file)


async def _await_end(exchange: Exchange, connection: Connection, sender: Sender, handover: Handover) -> End:
    """How the handover ended. On cancellation, the replica is stopped before another answer goes to the client.

    Raises ClientDisconnect if cancelled after the reply had begun, so that no other answer is possible.
    """
    try:
        await handover.started.wait()
        if not handover.end.done():
            exchange.began()
        # Shielded: after a cancellation the replica still reports how it ended.
        end = await asyncio.shield(handover.end)
        if end in (End.ANSWERED, End.BROKEN, End.DETACHED):
            exchange.began()
        return end
    except asyncio.CancelledError:
        stopped = await sender.abort(handover)
        if stopped is End.ANSWERED:
            connection.answered()
            exchange.ended(True)
        elif stopped in (End.BROKEN, End.DETACHED):
            connection.break_off(b"")
            exchange.ended(False)
        else:
            raise
        raise ClientDisconnect from None
    finally:
        exchange.record.stats = handover.stats


async def _conclude(exchange: Exchange, connection: Connection, handover: Handover, end: End) -> Outcome:
    if end is End.REFUSED:
        return await _pass_refusal_on(exchange, handover)
    if end in (End.LOST, End.FAILED):
        logger.warning("A replica of `%s` broke off before it answered.", exchange.for_replica.model_id)
        raise NotAnsweredError(Outcome.LOST if end is End.LOST else Outcome.FAILED)
    # A replica that dies at the end of its reply cannot say so.
    if end is End.ANSWERED or (end is End.BROKEN and handover.is_complete):
        connection.answered()
        exchange.ended(True)
        return Outcome.ANSWERED
    if end is End.DETACHED:
        # Closes this process's descriptor. The replica has its own.
        connection.break_off(b"")
        exchange.ended(True)
        return Outcome.ANSWERED
    if handover.interruption and exchange.interrupt(connection, handover.bytes_sent):
        raise NotAnsweredError(Outcome.LOST if handover.interruption is Interruption.LOST else Outcome.MOVED)
    connection.break_off(interrupted_event(exchange.path) if exchange.for_replica.is_stream else b"")
    exchange.ended(False)
    return Outcome.ERROR


async def _pass_refusal_on(exchange: Exchange, handover: Handover) -> Outcome:
    assert handover.refusal  # noqa: S101 (the replica's message has one)
    head, body = handover.refusal.head, handover.refusal.body
    status, reply_headers = head["status"], head["headers"]
    check_turned_away(reply_headers)
    check_refusal(exchange.for_replica.model_id, status, reply_headers.get("content-type", ""), body)
    kept = {name: value for name, value in reply_headers.items() if name in FOR_CLIENTS}
    await exchange.send_response(Response(body, status, kept))
    return Outcome.ANSWERED if status < 500 else Outcome.ERROR
