"""The guards of one router, and the requests and replies that each guard checks."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rayllm.core import headers
from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, ENDPOINTS, MESSAGES, RESPONSES
from rayllm.core.errors import GuardError, RefusedError
from rayllm.serving.router.guard.guard import Guard, GuardCaller
from rayllm.serving.router.guard.stream import GuardedStream
from rayllm.serving.router.guard.verdict import Verdict
from rayllm.serving.router.model_registry import ResolvedModel
from rayllm.serving.router.requests.body_reader import BodyReader
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.payload import FormPayload, Payload
from rayllm.serving.router.requests.texts import form_texts, reply_texts

logger = logging.getLogger(__name__)

_NAME = "router:guard"
_FORMS = tuple(endpoint.path for endpoint in ENDPOINTS if endpoint.is_form)
_CHECKED = (CHAT, CHAT_BATCH, COMPLETIONS, RESPONSES, MESSAGES, *_FORMS)


class Guards:
    """Asks guards about requests to generate, and about their replies."""

    def __init__(self, guards: Sequence[Guard], bodies: BodyReader) -> None:
        self.guards = guards
        self._bodies = bodies

    async def check(
        self, client: ClientRequest, payload: Payload, resolved: ResolvedModel, fallbacks: Sequence[str]
    ) -> None:
        """Ask about a request, and prepare the questions about its reply.

        Args:
            client: the client's request; its `reply_guard` is set.
            fallbacks: ids of models that may answer the request instead.

        Raises:
            RefusedError: a guard finds the request unsafe.
            GuardError: a guard fails, and `on_error` is `refuse`.
            RequestError: the texts cannot be read, or are too long.
        """
        guards = self._those_for(client, resolved.model_id, {payload.model, resolved.full_name, *fallbacks})
        if not guards:
            return
        started = time.perf_counter()
        try:
            if isinstance(payload, FormPayload):
                texts = form_texts(payload.fields)
            else:
                texts = await self._bodies.texts(payload.raw, client.caller.tenant)
            text = "\n\n".join(texts)
            await ask_all([guard for guard in guards if "input" in guard.config.check], client, "request", text)
        finally:
            client.record.guards_s += time.perf_counter() - started
        # A transcription is not the model's own text.
        if of_reply := [guard for guard in guards if "output" in guard.config.check and client.path not in _FORMS]:
            client.exchange.reply_guard = ReplyGuard(of_reply, client, text)

    def _those_for(self, client: ClientRequest, model_id: str, names: set[str]) -> list[Guard]:
        if client.path not in _CHECKED or model_id in [guard.config.model for guard in self.guards]:
            return []
        return [
            guard
            for guard in self.guards
            if guard.config.check
            and any(fnmatchcase(name, pattern) for name in (model_id, *names) for pattern in guard.config.models)
        ]


@dataclass(eq=False)
class ReplyGuard:
    """Asks guards about the reply to one request."""

    guards: Sequence[Guard]
    client: ClientRequest
    prompt: str

    async def check_whole(self, body: bytes) -> None:
        """Ask about a complete reply in JSON. Raises as `ask_all`."""
        for text in reply_texts(json.loads(body)):
            await self._check(text)

    def stream(self) -> GuardedStream:
        return GuardedStream(max(guard.config.window_chars for guard in self.guards), self._check)

    async def _check(self, text: str) -> None:
        started = time.perf_counter()
        try:
            await ask_all(self.guards, self.client, "reply", text, self.prompt)
        finally:
            self.client.record.reply_guards_s += time.perf_counter() - started


async def ask_all(guards: Sequence[Guard], client: ClientRequest, what: str, text: str, prompt: str = "") -> None:
    """Ask guards about a text at the same time. Raises RefusedError, or GuardError where `on_error` is `refuse`."""
    sender = GuardCaller(_NAME, client.caller.tenant, priority=client.priority)
    found = await asyncio.gather(*(_verdict(guard, client, sender, text, prompt) for guard in guards))
    for guard, verdict in zip(guards, found, strict=True):
        if verdict.is_flagged:
            named = f" ({', '.join(verdict.categories)})" if verdict.categories else ""
            message = f"The guard `{guard.config.model}` of this service refuses the {what}{named}."
            raise RefusedError(message, None, "content_policy_violation", 400, "guard")


async def _verdict(guard: Guard, client: ClientRequest, sender: GuardCaller, text: str, prompt: str) -> Verdict:
    try:
        return await guard.verdict(text, sender, question_headers(client), prompt)
    except GuardError as error:
        name, request_id = guard.config.model, client.record.request_id
        logger.warning("The guard `%s` failed on the request %s: %s", name, request_id, error)
        if guard.config.on_error == "allow":
            return Verdict(False)
        raise GuardError(f"The guard `{name}` of this service failed; the router's log says why.") from None


def question_headers(client: ClientRequest) -> dict[str, str]:
    """Headers of questions to guards, with the trace of the client's request."""
    request_id = f"guard-{client.record.request_id}"[: headers.LONGEST_REQUEST_ID]
    return {headers.REQUEST_ID: request_id, **client.record.trace_headers}


def as_guard_caller(client: ClientRequest) -> GuardCaller:
    """The sender of questions that count as the client's own."""
    return GuardCaller(**{**vars(client.caller), "priority": client.priority})
