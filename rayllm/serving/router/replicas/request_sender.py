"""A request's way to one replica, and its reply's way to the client: handed over where that can be, else by HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rayllm import headers
from rayllm.error_shapes import error_event
from rayllm.errors import ADAPTER_UNAVAILABLE, EngineError, UnavailableError
from rayllm.serving.handover import Handover, Message, Outcome, ReplicaGoneError, Sender
from rayllm.serving.router.http.connection import Connection
from rayllm.serving.router.replicas.errors import ReplicaDrainingError, ReplicaFullError, ReplicaLostError
from rayllm.serving.router.replicas.http_transport import HttpTransport, Reply
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.payload import Payload

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReplicaRequest:
    """What a replica is sent: a request to a model, with the headers that go with it."""

    model_id: str
    payload: Payload
    headers: Mapping[str, str]


class RequestSender:
    """Carries requests to replicas.

    Args:
        transport: the way by HTTP.
    """

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport

    async def send(
        self, client: ClientRequest, outgoing: ReplicaRequest, limit: asyncio.Timeout, replica: Replica
    ) -> bool:
        """Have a replica answer the client. Returns whether it answered as it should: False where it failed.

        Args:
            client: the client's.
            outgoing: for the replica.
            limit: ends the wait for the reply's first byte; lifted with that.
            replica: the replica.

        Raises:
            ReplicaFullError, ReplicaUnreachableError: the replica did nothing; another one may.
            ReplicaLostError: the replica is gone, or failed, and the client has seen nothing.
            UnavailableError, EngineError: it says why it does not answer.
        """
        connection = client.connection
        if replica.sender and connection:
            try:
                handover = _hand_over(replica.sender, connection, client, outgoing)
            except ReplicaGoneError:
                raise ReplicaDrainingError from None
            except OSError as error:
                logger.warning("The replica %s takes nothing here, asking it by HTTP: %r", replica.id, error)
            else:
                outcome = await _outcome(replica.sender, connection, handover, limit)
                return await _conclude(client, outgoing, connection, handover, outcome)
        return await self._exchange(client, outgoing, limit, replica)

    async def _exchange(
        self, client: ClientRequest, outgoing: ReplicaRequest, limit: asyncio.Timeout, replica: Replica
    ) -> bool:
        method, raw = client.request.method, outgoing.payload.raw
        async with self._transport.send(replica, method, client.path, raw, outgoing.headers) as reply:
            try:
                first = await (reply.content.readany() if reply.is_stream else reply.content.read())
            except (aiohttp.ClientError, ConnectionError) as error:
                logger.warning("A replica of `%s` broke off: %r", outgoing.model_id, error)
                raise ReplicaLostError from None
            if reply.status >= 400:
                _check_refusal(outgoing.model_id, reply.status, reply.content_type, first)
            limit.reschedule(None)
            return await _send(client, reply, first)


def _hand_over(sender: Sender, connection: Connection, client: ClientRequest, outgoing: ReplicaRequest) -> Handover:
    raw = outgoing.payload.raw
    head = {
        "method": client.request.method,
        "path": client.path,
        "headers": {**outgoing.headers, "content-length": str(len(raw))},
        "reply_headers": connection.reply_headers,
        "keeps_alive": connection.keeps_alive,
        "send_timeout_s": connection.send_timeout_s,
    }
    return sender.hand_over(connection.file, head, raw)


async def _outcome(sender: Sender, connection: Connection, handover: Handover, limit: asyncio.Timeout) -> Outcome:
    """How the request ended. Where this is cancelled, the replica is stopped before anybody else answers.

    Raises:
        ClientDisconnect: it was cancelled after the replica had begun a reply: nobody else can answer.
    """
    try:
        await handover.started.wait()
        if not handover.outcome.done():
            limit.reschedule(None)
        # Shielded, since the replica is asked for its outcome where this is cancelled.
        return await asyncio.shield(handover.outcome)
    except asyncio.CancelledError:
        stopped = await sender.abort(handover)
        if stopped is Outcome.ANSWERED:
            connection.answered()
        elif stopped is Outcome.BROKEN:
            connection.break_off(b"")
        else:
            raise
        raise ClientDisconnect from None


async def _conclude(
    client: ClientRequest, outgoing: ReplicaRequest, connection: Connection, handover: Handover, outcome: Outcome
) -> bool:
    if outcome is Outcome.ANSWERED:
        connection.answered()
        return True
    if outcome is Outcome.BROKEN:
        connection.break_off(_broke_off_in_the_middle(client.path) if outgoing.payload.wants_stream else b"")
        return False
    if handover.refusal is None:
        logger.warning("A replica of `%s` broke off before it answered.", outgoing.model_id)
        raise ReplicaLostError
    response = _refusal(outgoing.model_id, handover.refusal)
    await client.answer(response)
    return response.status_code < 500


def _refusal(model_id: str, message: Message) -> Response:
    status, reply_headers = message.head["status"], message.head["headers"]
    if headers.FULL in reply_headers:
        raise ReplicaFullError
    if headers.LEAVING in reply_headers:
        raise ReplicaDrainingError
    if headers.LOST in reply_headers:
        raise ReplicaLostError
    _check_refusal(model_id, status, reply_headers.get("content-type", ""), message.body)
    kept = {name: value for name, value in reply_headers.items() if name in ("content-type", "retry-after")}
    return Response(message.body, status, kept)


async def _send(client: ClientRequest, reply: Reply, first: bytes) -> bool:
    """Pass the reply on. Returns whether it was whole, and none of a failure."""
    kept = dict(reply.headers)
    if reply.content_type:
        kept["content-type"] = reply.content_type
    if not reply.is_stream:
        await client.answer(Response(first, reply.status, kept))
        return reply.status < 500
    await client.begin(reply.status, {**kept, "cache-control": "no-cache"})
    await client.go_on(first)
    is_whole = True
    try:
        async for chunk in reply.content.iter_any():
            await client.go_on(chunk)
    except (aiohttp.ClientError, ConnectionError) as error:
        logger.warning("A replica broke off in the middle of a stream: %r", error)
        is_whole = False
        await client.go_on(b"\n\n" + _broke_off_in_the_middle(client.path))
    await client.go_on(b"", is_last=True)
    return is_whole


def _broke_off_in_the_middle(path: str) -> bytes:
    return error_event(EngineError("The model's replica broke off in the middle of its answer."), path)


def _check_refusal(model_id: str, status: int, content_type: str, body: bytes) -> None:
    """Let a replica's own error objects pass; all else that it may refuse with becomes an error of ours."""
    if status == 503:
        raise _unavailable(model_id, body)
    if not content_type.startswith("application/json"):
        logger.error("A replica of `%s` answered %d: %s", model_id, status, body[:500])
        raise EngineError("The model's replica failed on this request; its log says why.")


def _unavailable(model_id: str, body: bytes) -> UnavailableError:
    """The error for a 503: what the replica says of an adapter that cannot be had, else that there is no room."""
    try:
        error = json.loads(body)["error"]
        if error["code"] == ADAPTER_UNAVAILABLE:
            return UnavailableError(str(error["message"]), "model", ADAPTER_UNAVAILABLE, 10)
    except (ValueError, KeyError, TypeError):
        pass
    return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")
