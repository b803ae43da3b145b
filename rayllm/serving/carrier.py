"""A request's way to one replica, and its reply's way to the client: handed over where that can be, else by HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp
from starlette.responses import Response

from rayllm import headers
from rayllm.error_shapes import error_event
from rayllm.errors import ADAPTER_UNAVAILABLE, EngineError, UnavailableError
from rayllm.serving.errand import Errand
from rayllm.serving.exchange import Exchanger, Reply
from rayllm.serving.fleet import FullError, Member
from rayllm.serving.front import Connection
from rayllm.serving.handover import Giver, Handed, Message, Outcome
from rayllm.serving.payload import Payload

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cargo:
    """What a replica is sent: a request to a model, with the headers that go with it."""

    model_id: str
    payload: Payload
    headers: Mapping[str, str]


class Carrier:
    """Carries requests to replicas.

    Args:
        exchanger: the way by HTTP.
    """

    def __init__(self, exchanger: Exchanger) -> None:
        self._exchanger = exchanger

    async def carry(self, errand: Errand, cargo: Cargo, limit: asyncio.Timeout, member: Member) -> None:
        """Have a replica answer the client.

        Args:
            errand: the client's.
            cargo: for the replica.
            limit: ends the wait for the reply's first byte; lifted with that.
            member: the replica.

        Raises:
            FullError, UnreachableError: the replica did nothing; another one may.
            UnavailableError, EngineError: it has failed before it answered.
        """
        connection = errand.connection
        if member.giver and connection:
            try:
                handed = _hand_over(member.giver, connection, errand, cargo)
            except OSError as error:
                logger.warning("The replica %s takes nothing here, asking it by HTTP: %r", member.candidate.id, error)
            else:
                outcome = await _outcome(member.giver, handed, limit)
                await _conclude(errand, cargo, connection, handed, outcome)
                return
        await self._exchange(errand, cargo, limit, member)

    async def _exchange(self, errand: Errand, cargo: Cargo, limit: asyncio.Timeout, member: Member) -> None:
        method, raw = errand.request.method, cargo.payload.raw
        try:
            async with self._exchanger.send(member, method, errand.path, raw, cargo.headers) as reply:
                first = await (reply.content.readany() if reply.is_stream else reply.content.read())
                if reply.status >= 400:
                    _check_refusal(cargo.model_id, reply.status, reply.content_type, first)
                limit.reschedule(None)
                await _send(errand, reply, first)
        except (aiohttp.ClientError, ConnectionError) as error:
            logger.warning("A replica of `%s` broke off: %r", cargo.model_id, error)
            raise _broke_off_before(cargo.model_id) from None


def _hand_over(giver: Giver, connection: Connection, errand: Errand, cargo: Cargo) -> Handed:
    raw = cargo.payload.raw
    head = {
        "method": errand.request.method,
        "path": errand.path,
        "headers": {**cargo.headers, "content-length": str(len(raw))},
        "reply_headers": connection.reply_headers,
        "keeps_alive": connection.keeps_alive,
    }
    return giver.give(connection.file, head, raw)


async def _outcome(giver: Giver, handed: Handed, limit: asyncio.Timeout) -> Outcome:
    try:
        await handed.started.wait()
        if not handed.outcome.done():
            limit.reschedule(None)
        return await handed.outcome
    except BaseException:
        giver.abort(handed)
        raise


async def _conclude(errand: Errand, cargo: Cargo, connection: Connection, handed: Handed, outcome: Outcome) -> None:
    if outcome is Outcome.ANSWERED:
        connection.answered()
    elif outcome is Outcome.BROKEN:
        connection.break_off(_broke_off_in_the_middle(errand.path) if cargo.payload.wants_stream else b"")
    elif handed.refusal is None:
        raise _broke_off_before(cargo.model_id)
    else:
        await errand.answer(_refusal(cargo.model_id, handed.refusal))


def _refusal(model_id: str, message: Message) -> Response:
    status, told = message.head["status"], message.head["headers"]
    if headers.FULL in told:
        raise FullError
    _check_refusal(model_id, status, told.get("content-type", ""), message.body)
    kept = {name: value for name, value in told.items() if name in ("content-type", "retry-after")}
    return Response(message.body, status, kept)


async def _send(errand: Errand, reply: Reply, first: bytes) -> None:
    kept = dict(reply.headers)
    if reply.content_type:
        kept["content-type"] = reply.content_type
    if not reply.is_stream:
        await errand.answer(Response(first, reply.status, kept))
        return
    await errand.begin(reply.status, {**kept, "cache-control": "no-cache"})
    async for chunk in _chunks(reply, first, errand.path):
        await errand.go_on(chunk)
    await errand.go_on(b"", is_last=True)


async def _chunks(reply: Reply, first: bytes, path: str) -> AsyncIterator[bytes]:
    yield first
    try:
        async for chunk in reply.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, ConnectionError) as error:
        logger.warning("A replica broke off in the middle of a stream: %r", error)
        yield b"\n\n" + _broke_off_in_the_middle(path)


def _broke_off_before(model_id: str) -> EngineError:
    logger.warning("A replica of `%s` broke off before it answered.", model_id)
    return EngineError("The model's replica broke off before it answered; try again.")


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
    """What a replica says of an adapter that cannot be had is told; all else is a matter of room."""
    try:
        error = json.loads(body)["error"]
        if error["code"] == ADAPTER_UNAVAILABLE:
            return UnavailableError(str(error["message"]), "model", ADAPTER_UNAVAILABLE, 10)
    except (ValueError, KeyError, TypeError):
        pass
    return UnavailableError(f"The model `{model_id}` has no room for more requests now.", "model")
