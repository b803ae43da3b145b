"""Sending a request to one replica: by handing the client's connection over, or by HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rayllm.core import headers
from rayllm.core.errors import ADAPTER_UNAVAILABLE, ConstraintNotCheckedError, EngineError, UnavailableError
from rayllm.core.stream_journal import JournalError, StreamJournal
from rayllm.serving.handover import Handover, Interruption, Message, Outcome, ReplicaGoneError, Sender
from rayllm.serving.router.http.connection import Connection
from rayllm.serving.router.replicas.errors import (
    ReplicaDrainingError,
    ReplicaFailedError,
    ReplicaLostError,
    ReplicaMovedError,
    check_turned_away,
)
from rayllm.serving.router.replicas.http_transport import HttpTransport, Reply
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.stream_relay import StreamRelay, interrupted_event
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.payload import Payload

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReplicaRequest:
    """A request for a replica, with its headers."""

    model_id: str
    payload: Payload
    headers: Mapping[str, str]


class RequestSender:
    """Sends requests to replicas."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport

    async def send(
        self, client: ClientRequest, replica_request: ReplicaRequest, deadline: asyncio.Timeout, replica: Replica
    ) -> bool:
        """Send a request to a replica, and its reply to the client. Returns False if the replica answered with a
        failure.

        Args:
            deadline: timeout of the reply's first byte; lifted once that has arrived.

        Raises:
            ReplicaFullError, ReplicaUnreachableError: the client has received nothing; another replica may take it.
            ReplicaLostError, ReplicaFailedError: the replica died or failed before the client received anything.
            ReplicaLostError, ReplicaMovedError: the client has received the beginning of a stream, and another replica
                can go on with it.
            UnavailableError, EngineError: the replica's reason for not answering.
        """
        sender, connection = replica.sender, client.connection
        if (
            sender
            and connection
            and (handover := _start_handover(replica.id, sender, connection, client, replica_request))
        ):
            outcome = await _await_outcome(sender, client, connection, handover, deadline)
            return await _conclude(client, replica_request, connection, handover, outcome)
        return await self._send_by_http(client, replica_request, deadline, replica)

    async def _send_by_http(
        self, client: ClientRequest, replica_request: ReplicaRequest, deadline: asyncio.Timeout, replica: Replica
    ) -> bool:
        method, raw = client.request.method, replica_request.payload.raw
        replica_headers, journal = {**replica_request.headers, headers.FRAMES: "1"}, None
        if replica_request.payload.wants_stream and not client.reply_guard:
            try:
                journal = client.relay_journal()
            except JournalError as error:
                logger.error("A stream cannot be continued: %s.", error)
                raise EngineError("The model's replica broke off in the middle of its answer.") from None
        if journal:
            tokens = journal.token_bytes()
            replica_headers[headers.JOURNAL] = json.dumps({**journal.description, "token_bytes": len(tokens)})
            raw = tokens + raw
        async with self._transport.send(replica, method, client.path, raw, replica_headers) as reply:
            try:
                first = await (reply.content.readany() if reply.is_stream else reply.content.read())
            except (aiohttp.ClientError, ConnectionError) as error:
                logger.warning("A replica of `%s` broke off: %r", replica_request.model_id, error)
                raise ReplicaLostError from None
            if reply.status >= 400:
                _check_refusal(replica_request.model_id, reply.status, reply.content_type, first)
            deadline.reschedule(None)
            client.record.began()
            return await _send(client, reply, first, journal)


def _start_handover(
    replica_id: str, sender: Sender, connection: Connection, client: ClientRequest, replica_request: ReplicaRequest
) -> Handover | None:
    """Hand the request over to a replica; None if its socket cannot be reached.

    Raises:
        ReplicaDrainingError: the replica takes no more requests.
    """
    try:
        return _hand_over(sender, connection, client, replica_request)
    except ReplicaGoneError:
        raise ReplicaDrainingError from None
    except OSError as error:
        logger.warning("The replica %s does not accept handovers; using HTTP: %r", replica_id, error)
        return None


def _hand_over(
    sender: Sender, connection: Connection, client: ClientRequest, replica_request: ReplicaRequest
) -> Handover:
    raw = replica_request.payload.raw
    head = {
        "method": client.request.method,
        "path": client.path,
        "headers": {**replica_request.headers, "content-length": str(len(raw))},
        "reply_headers": {**connection.reply_headers, **client.reply_headers},
        "keeps_alive": connection.keeps_alive,
        "send_timeout_s": connection.send_timeout_s,
    }
    if client.wants_timing:
        head["timing"] = client.timing()
    journal = client.open_journal() if replica_request.payload.wants_stream else None
    if journal is None:
        return sender.hand_over(connection.socket, head, raw)
    head["journal"] = journal.description
    return sender.hand_over(connection.socket, head, raw, journal.file)


async def _await_outcome(
    sender: Sender, client: ClientRequest, connection: Connection, handover: Handover, deadline: asyncio.Timeout
) -> Outcome:
    """How the handover ended. On cancellation, the replica is stopped before another answer goes to the client.

    Raises:
        ClientDisconnect: cancelled after the replica had started its reply, so that no other answer is possible.
    """
    try:
        await handover.started.wait()
        if not handover.outcome.done():
            deadline.reschedule(None)
            client.record.began()
        # Shielded: after a cancellation the replica still reports its outcome.
        outcome = await asyncio.shield(handover.outcome)
        if outcome in (Outcome.ANSWERED, Outcome.BROKEN, Outcome.DETACHED):
            client.record.began()
        return outcome
    except asyncio.CancelledError:
        stopped = await sender.abort(handover)
        if stopped is Outcome.ANSWERED:
            connection.answered()
        elif stopped in (Outcome.BROKEN, Outcome.DETACHED):
            connection.break_off(b"")
        else:
            raise
        raise ClientDisconnect from None
    finally:
        client.record.stats = handover.stats


async def _conclude(
    client: ClientRequest, replica_request: ReplicaRequest, connection: Connection, handover: Handover, outcome: Outcome
) -> bool:
    if outcome is Outcome.ANSWERED:
        connection.answered()
        return True
    if outcome is Outcome.DETACHED:
        # Closes this process's descriptor. The replica has its own.
        connection.break_off(b"")
        return True
    if outcome is Outcome.BROKEN:
        if handover.is_complete:
            # The replica died before it could say so.
            connection.answered()
            return True
        if handover.interruption and client.interrupt(connection, handover.bytes_sent):
            raise ReplicaLostError if handover.interruption is Interruption.LOST else ReplicaMovedError
        connection.break_off(interrupted_event(client.path) if replica_request.payload.wants_stream else b"")
        return False
    if handover.refusal is None:
        logger.warning("A replica of `%s` broke off before it answered.", replica_request.model_id)
        raise ReplicaFailedError if outcome is Outcome.FAILED else ReplicaLostError
    response = _refusal(replica_request.model_id, handover.refusal)
    await client.send_response(response)
    return response.status_code < 500


def _refusal(model_id: str, message: Message) -> Response:
    status, reply_headers = message.head["status"], message.head["headers"]
    check_turned_away(reply_headers)
    _check_refusal(model_id, status, reply_headers.get("content-type", ""), message.body)
    kept = {name: value for name, value in reply_headers.items() if name in ("content-type", "retry-after")}
    return Response(message.body, status, kept)


async def _send(client: ClientRequest, reply: Reply, first: bytes, journal: StreamJournal | None) -> bool:
    """Pass the reply on. Returns whether it was complete and not a failure."""
    kept = dict(reply.headers)
    if reply.content_type:
        kept["content-type"] = reply.content_type
    client.record.stats = reply.stats
    if reply.is_stream:
        return await StreamRelay(client, reply, {**kept, "cache-control": "no-cache"}, journal).run(first)
    if client.reply_guard and reply.status == 200:
        await client.reply_guard.check_whole(first)
    await client.send_response(Response(first, reply.status, kept))
    return reply.status < 500


def _check_refusal(model_id: str, status: int, content_type: str, body: bytes) -> None:
    """Pass a replica's own error objects through; map everything else to our exceptions."""
    if status == 503:
        raise _unavailable(model_id, body)
    if not content_type.startswith("application/json"):
        logger.error("A replica of `%s` answered %d: %s", model_id, status, body[:500])
        raise EngineError("The model's replica failed on this request; its log says why.")


def _unavailable(model_id: str, body: bytes) -> UnavailableError:
    """The error for a 503: the replica's own if it says what is unavailable, else that the model has no free slot."""
    try:
        error = json.loads(body)["error"]
        if error["code"] == ADAPTER_UNAVAILABLE:
            return UnavailableError(str(error["message"]), "model", ADAPTER_UNAVAILABLE, 10)
        if error["code"] == ConstraintNotCheckedError.default_code:
            return ConstraintNotCheckedError(str(error["message"]))
    except (ValueError, KeyError, TypeError):
        pass
    return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")
