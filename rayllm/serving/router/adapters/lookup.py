"""Whether the adapters that clients name are there, asked of replicas before a request takes one of their slots.

Clients invent names. A slot is for requests that a model can answer, so a router first asks a replica, which has the
credentials: many names in one question, few questions at once, and answers are remembered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import aiohttp

from rayllm.errors import UnavailableError
from rayllm.headers import ADAPTERS_PATH
from rayllm.lora import AdapterName, no_adapter
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.replicas.errors import ReplicaFullError, ReplicaLostError, ReplicaUnreachableError
from rayllm.serving.router.replicas.http_transport import HttpTransport
from rayllm.serving.router.replicas.replica import Replica

logger = logging.getLogger(__name__)

_REMEMBERED = 4096
# An adapter that was just added is found so soon.
_MISSING_S = 2.0
# One that is there goes on to its replica, which says what has become of it.
_THERE_S = 600.0
_NAMES_AT_ONCE = 64
_QUESTIONS_AT_ONCE = 2
_MOST_WAITING = 4096
_ANSWER_S = 10.0
_TRIES = 3

AskMissing = Callable[[str, list[str]], Awaitable[Collection[str]]]
"""Gives those of the names that are no adapters of a model."""


@dataclass
class _PendingLookup:
    """One name, and how many clients wait for what it means."""

    is_missing: asyncio.Future[bool]
    clients: int = 0
    is_sent: bool = False


class AdapterLookup:
    """Looks up adapters of many models.

    Args:
        ask: asks a replica.
    """

    def __init__(self, ask: AskMissing) -> None:
        self._ask = ask
        self._known: OrderedDict[AdapterName, tuple[bool, float]] = OrderedDict()
        self._questions: dict[AdapterName, _PendingLookup] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def knows(self, name: AdapterName) -> bool:
        """Whether the adapter was there when somebody asked last, some minutes ago at most."""
        return self._missing(name) is False

    async def check(self, name: AdapterName) -> None:
        """Return if the adapter exists, or if no replica can tell.

        Raises:
            ModelNotFoundError: there is none of that name.
            UnavailableError: too many names are waiting.
        """
        missing = self._missing(name)
        if missing is None:
            missing = await self._answer(name)
        if missing:
            raise no_adapter(name)

    def _missing(self, name: AdapterName) -> bool | None:
        missing, until = self._known.get(name, (None, 0.0))
        return missing if time.monotonic() < until else None

    async def _answer(self, name: AdapterName) -> bool:
        question = self._questions.get(name)
        if question is None:
            if len(self._questions) >= _MOST_WAITING:
                raise UnavailableError("Too many adapters are being looked up.", "model", retry_after_s=5)
            question = self._questions[name] = _PendingLookup(asyncio.get_running_loop().create_future())
        question.clients += 1
        try:
            self._go_on()
            return await asyncio.shield(question.is_missing)
        finally:
            question.clients -= 1
            if not question.clients and not question.is_sent:
                del self._questions[name]

    def _go_on(self) -> None:
        """Ask for what nobody has asked yet, as far as there may be more questions now."""
        while len(self._asking) < _QUESTIONS_AT_ONCE and (names := self._next()):
            task = in_background(self._learn(names))
            self._asking.add(task)
            task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        self._go_on()

    def _next(self) -> list[AdapterName]:
        """Names of one model for the next question."""
        waiting = [name for name, question in self._questions.items() if not question.is_sent]
        names = [name for name in waiting if name.base == waiting[0].base][:_NAMES_AT_ONCE]
        for name in names:
            self._questions[name].is_sent = True
        return names

    async def _learn(self, names: list[AdapterName]) -> None:
        missing: Collection[str] = ()
        try:
            async with asyncio.timeout(_ANSWER_S):
                missing = await self._ask(names[0].base, [name.adapter for name in names])
            for name in names:
                self._remember(name, name.adapter in missing)
        except (TimeoutError, UnavailableError, ValueError, KeyError) as error:
            # The requests go on, and are told themselves.
            logger.warning("Adapters of `%s` cannot be looked up: %r", names[0].base, error)
        finally:
            for name in names:
                self._questions.pop(name).is_missing.set_result(name.adapter in missing)

    def _remember(self, name: AdapterName, missing: bool) -> None:
        self._known[name] = missing, time.monotonic() + (_MISSING_S if missing else _THERE_S)
        self._known.move_to_end(name)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


class ReplicaAdapterLookup:
    """Asks replicas, outside their slots.

    Args:
        replicas: gives the replicas of a model.
        transport: the way to them.
    """

    def __init__(self, replicas: Callable[[str], Collection[Replica]], transport: HttpTransport) -> None:
        self._members = replicas
        self._transport = transport

    async def missing(self, model_id: str, names: list[str]) -> Collection[str]:
        """Those of `names` that are no adapters of the model, as one of its replicas tells.

        Raises:
            UnavailableError: none of them tells.
        """
        body = json.dumps({"names": names}).encode()
        # A question may be asked again: it changes nothing.
        for _ in range(_TRIES):
            for replica in sorted(self._members(model_id), key=lambda replica: replica.candidate.requests):
                try:
                    async with self._transport.send(replica, "POST", ADAPTERS_PATH, body, {}) as reply:
                        if reply.status == 200:
                            return frozenset(json.loads(await reply.content.read())["missing"])
                except (
                    ReplicaUnreachableError,
                    ReplicaFullError,
                    ReplicaLostError,
                    aiohttp.ClientError,
                    ConnectionError,
                ) as error:
                    logger.info("The replica %s does not look up adapters: %r", replica.id, error)
        raise UnavailableError(f"No replica of the model `{model_id}` looks up adapters.", "model")
