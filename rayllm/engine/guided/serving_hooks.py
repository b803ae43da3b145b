"""Guided decoding in the replica's process: around vLLM's chat and completion calls.

All answers that are errors are *returned*, as vLLM's `ErrorResponse`, since vLLM's application turns an exception of
ours into a plain 500. Those of a backend's faults have the type `ERROR_TYPE`; their sentence holds no internals, so
whoever rewrites vLLM's errors can pass it on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextvars import Context, copy_context
from http import HTTPStatus
from typing import Any

from rayllm.engine.guided.backend import FIELD, Backend, Backends
from rayllm.engine.guided.envelope import KEY, Envelope
from rayllm.engine.guided.failure_reports import Failures, Ticket
from rayllm.errors import RequestError

logger = logging.getLogger(__name__)

ERROR_TYPE = "GuidedDecodingError"

_CALLS = {
    "chat": ("openai_serving_chat", "create_chat_completion"),
    "completion": ("openai_serving_completion", "create_completion"),
}
# Calls that are not guided: they must neither carry a client's envelope nor take a backend's name without a word.
_OTHERS = (
    ("openai_serving_chat_batch", "create_batch_chat_completion"),
    ("openai_serving_responses", "create_responses"),
    ("anthropic_serving_messages", "create_messages"),
)
_DONE = "data: [DONE]\n\n"


def install(state: Any, backends: Backends, failures: Failures) -> None:
    """Wrap the chat and completion calls of vLLM's application; once, after it was built.

    Its other calls that generate are not guided, by the default backend neither, and refuse requests that name one.

    Args:
        state: `app.state`; its serving objects may be None.
        backends: what requests may choose.
        failures: listens already, at the address that the workers were given.
    """
    for kind, (attribute, method) in _CALLS.items():
        serving = getattr(state, attribute, None)
        if serving is not None:
            setattr(serving, method, _Wrapper(serving, getattr(serving, method), kind, backends, failures))
    for attribute, method in _OTHERS:
        serving = getattr(state, attribute, None)
        if serving is not None:
            setattr(serving, method, _unguided(serving, getattr(serving, method)))


def _unguided(serving: Any, original: Any) -> Any:
    async def call(request: Any, raw_request: Any = None) -> Any:
        _strip(request)
        try:
            if asked_backend(request) is not None:
                raise RequestError(
                    "Guided decoding backends work with /v1/chat/completions and /v1/completions only.", FIELD
                )
        except RequestError as error:
            return serving.create_error_response(error.message, param=error.param)
        return await original(request, raw_request)

    return call


class _Wrapper:
    """Stands for one of vLLM's methods."""

    def __init__(self, serving: Any, original: Any, kind: str, backends: Backends, failures: Failures) -> None:
        self._serving = serving
        self._original = original
        self._kind = kind
        self._backends = backends
        self._failures = failures

    async def __call__(self, request: Any, raw_request: Any = None) -> Any:
        _strip(request)
        try:
            asked, constraint = asked_backend(request), constrained_by(request)
            backend = self._backends.choose(asked)
            if backend is None or (asked is None and constraint):
                return await self._original(request, raw_request)
            if constraint:
                # Between the two no token might be left.
                raise RequestError(f"`{constraint}` and a guided decoding backend exclude each other.", constraint)
            if request.use_beam_search:
                # vLLM's beam search runs no logits processor: the answer would be unconstrained.
                raise RequestError("Guided decoding backends do not work with beam search.", "use_beam_search")
        except RequestError as error:
            return self._serving.create_error_response(error.message, param=error.param)
        context = copy_context()
        exchange = _Exchange(self._serving, self._original, backend, self._failures.ticket(), context)
        # All of the request's parts run in one context: what a backend sets in one function it finds in the next.
        return await asyncio.create_task(exchange.answer(request, raw_request, self._kind), context=context)


def asked_backend(request: Any) -> str | None:
    """The backend that a request names in `nvext.guided_decoding_backend`, if any.

    Raises:
        RequestError: `nvext` is no object, or the name no string.
    """
    nvext = (request.model_extra or {}).get("nvext")
    if nvext is None:
        return None
    if not isinstance(nvext, Mapping):
        raise RequestError("nvext must be an object.", "nvext")
    name = nvext.get("guided_decoding_backend")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"{FIELD} must be a string, the name of a backend.", FIELD)
    return name


def constrained_by(request: Any) -> str | None:
    """The field by which a request lets vLLM constrain its answer, if any: a default backend then stands back."""
    if getattr(request, "structured_outputs", None) is not None:
        return "structured_outputs"
    response_format = getattr(request, "response_format", None)
    if response_format is not None and response_format.type != "text":
        return "response_format"
    return "tool_choice" if getattr(request, "tool_choice", None) not in (None, "none", "auto") else None


def _strip(request: Any) -> None:
    """Take out what a client put where only we write: a forged envelope would reach the worker's Python code."""
    given = getattr(request, "vllm_xargs", None)
    if given and KEY in given:
        request.vllm_xargs = {name: value for name, value in given.items() if name != KEY} or None


class _Exchange:
    """One request that a backend guides."""

    def __init__(self, serving: Any, original: Any, backend: Backend, ticket: Ticket, context: Context) -> None:
        self._serving = serving
        self._original = original
        self._backend = backend
        self._ticket = ticket
        self._context = context

    async def answer(self, request: Any, raw_request: Any, kind: str) -> Any:
        """What vLLM's method returns: a stream of events, a reply or an error; each as the backend wants it."""
        # As it came: the worker lets the backend prepare it a second time.
        packed = Envelope(self._backend.name, kind, _plain(request), self._ticket.id).pack()
        try:
            await self._backend.prepare(request)
        except Exception:
            return self._error(self._fault("it read the request"))
        request.vllm_xargs = {**(request.vllm_xargs or {}), KEY: packed}
        result = await self._unless_failed(self._original(request, raw_request))
        if self._ticket.fault is not None:
            result = self._error(self._ticket.fault)
        try:
            result = await self._backend.respond(result, raw_request)
            if result is None:
                raise TypeError("get_guided_decoding_constrained_generator returned None")
        except Exception:
            return self._error(self._fault("it looked at the response"))
        return self._stream(aiter(result)) if hasattr(result, "__aiter__") else result

    async def _stream(self, events: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """The events, each made in the request's context, which is not that of the task that sends them."""
        steps = self._backend.steps_of(events)
        fault = None
        try:
            while (item := await self._unless_failed(anext(steps, _END))) is not _END and self._ticket.fault is None:
                yield item
        except Exception:
            if self._backend.respond_with is None:
                raise
            fault = self._fault("it looked at the response")
        finally:
            await self._start(steps.aclose())
        if stage := fault or self._ticket.fault:
            yield f"data: {json.dumps(self._error(stage).model_dump())}\n\n"
            yield _DONE

    async def _unless_failed(self, work: Awaitable[Any]) -> Any:
        """What `work` gives; None as soon as a worker reports a failure: with `ignore_eos` the engine would go on."""
        task = self._start(work)
        try:
            await asyncio.wait({task, self._ticket.failed}, return_when=asyncio.FIRST_COMPLETED)
            return await task if self._ticket.fault is None else None
        finally:
            # Also when the client has left: vLLM then aborts the request.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        async def awaited() -> Any:
            return await work

        return asyncio.create_task(awaited(), context=self._context)

    def _fault(self, stage: str) -> str:
        logger.exception("The guided decoding backend `%s` failed while %s.", self._backend.name, stage)
        return stage

    def _error(self, stage: str) -> Any:
        return self._serving.create_error_response(
            f"The guided decoding backend `{self._backend.name}` failed while {stage}; the server's log says why.",
            ERROR_TYPE,
            HTTPStatus.INTERNAL_SERVER_ERROR,
        )


_END = object()


def _plain(request: Any) -> dict[str, Any]:
    """The request as JSON, from which the worker can make it again: what the client sent and no default."""
    sent: dict[str, Any] = request.model_dump(mode="json", exclude_unset=True)
    # Drawn by chance where the client gave none; a backend must find the same one in both processes.
    drawn = getattr(request, "request_id", None)
    return sent | {"request_id": drawn} if drawn else sent
