"""Hooks around vLLM's chat and completion calls, in the replica's process.

Errors are *returned* as vLLM's `ErrorResponse`, since vLLM's application turns our exceptions into a plain 500. Those
caused by backends have the type `ERROR_TYPE` and contain no internals, so they may be passed to clients.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from rayllm.core.errors import RequestError
from rayllm.engine.guided.backend import FIELD, Backend, Backends
from rayllm.engine.guided.failure_reports import Failures, Ticket
from rayllm.engine.guided.worker_messages import KEY, Envelope

logger = logging.getLogger(__name__)

ERROR_TYPE = "GuidedDecodingError"

_CALLS = {
    "chat": ("openai_serving_chat", "create_chat_completion"),
    "completion": ("openai_serving_completion", "create_completion"),
}
_DONE = "data: [DONE]\n\n"


def guide_calls(state: Any, backends: Backends, failures: Failures) -> None:
    """Wrap the calls of vLLM's application, whose `state` is given. Call once.

    `rewrite_request` refuses backends at other endpoints, and removes forged envelopes.
    """
    for kind, (attribute, method) in _CALLS.items():
        serving = getattr(state, attribute, None)
        if serving is not None:
            setattr(serving, method, _Wrapper(serving, getattr(serving, method), kind, backends, failures))


@dataclass(frozen=True)
class _Wrapper:
    serving: Any
    original: Any
    kind: str
    backends: Backends
    failures: Failures

    async def __call__(self, request: Any, raw_request: Any = None) -> Any:
        try:
            requested, constraint = requested_backend(request), constrained_by(request)
            backend = self.backends.choose(requested)
            if backend is None or (requested is None and constraint):
                return await self.original(request, raw_request)
            if constraint:
                # The two might leave no token.
                raise RequestError(f"`{constraint}` and a guided decoding backend exclude each other.", constraint)
            if request.use_beam_search:
                # vLLM's beam search ignores logits processors: the answer would be unconstrained.
                raise RequestError("Guided decoding backends do not work with beam search.", "use_beam_search")
        except RequestError as error:
            return self.serving.create_error_response(error.message, param=error.param)
        context = copy_context()
        exchange = _Exchange(self.serving, self.original, backend, self.failures.ticket(), context)
        # Everything runs in one context: what a backend sets in one function it finds in the next.
        return await asyncio.create_task(exchange.answer(request, raw_request, self.kind), context=context)


def requested_backend(request: Any) -> str | None:
    """The name in `nvext.guided_decoding_backend`, if any. Raises RequestError for a value of a wrong type."""
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
    """The field with a constraint for vLLM, if any: the default backend does not apply to constrained requests."""
    if getattr(request, "structured_outputs", None) is not None:
        return "structured_outputs"
    response_format = getattr(request, "response_format", None)
    if response_format is not None and response_format.type != "text":
        return "response_format"
    return "tool_choice" if getattr(request, "tool_choice", None) not in (None, "none", "auto") else None


@dataclass(frozen=True)
class _Exchange:
    serving: Any
    original: Any
    backend: Backend
    ticket: Ticket
    context: Context

    async def answer(self, request: Any, raw_request: Any, kind: str) -> Any:
        """Answer the request: with a stream of events, a reply or an error of vLLM, changed by the backend."""
        # Unchanged: the worker calls the backend's preparation again.
        packed = Envelope(self.backend.name, kind, _plain(request), self.ticket.id).pack()
        try:
            await self.backend.prepare(request)
        except Exception:
            return self._error(self._fault("it read the request"))
        request.vllm_xargs = {**(request.vllm_xargs or {}), KEY: packed}
        result = await self._unless_failed(self.original(request, raw_request))
        if self.ticket.fault is not None:
            result = self._error(self.ticket.fault)
        try:
            result = await self.backend.respond(result, raw_request)
            if result is None:
                raise TypeError("get_guided_decoding_constrained_generator returned None")
        except Exception:
            return self._error(self._fault("it looked at the response"))
        return self._stream(aiter(result)) if hasattr(result, "__aiter__") else result

    async def _stream(self, events: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """The events of a stream, produced in the request's context rather than the sending task's."""
        steps = self.backend.steps_of(events)
        fault = None
        try:
            while (item := await self._unless_failed(anext(steps, _END))) is not _END and self.ticket.fault is None:
                yield item
        except Exception:
            if self.backend.respond_with is None:
                raise
            fault = self._fault("it looked at the response")
        finally:
            await self._start(steps.aclose())
        if stage := fault or self.ticket.fault:
            yield f"data: {json.dumps(self._error(stage).model_dump())}\n\n"
            yield _DONE

    async def _unless_failed(self, work: Awaitable[Any]) -> Any:
        # With `ignore_eos` the engine would continue after a failure.
        task = self._start(work)
        try:
            await asyncio.wait({task, self.ticket.failed}, return_when=asyncio.FIRST_COMPLETED)
            return await task if self.ticket.fault is None else None
        finally:
            # Also on disconnect: vLLM then aborts the request.
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        async def awaited() -> Any:
            return await work

        return asyncio.create_task(awaited(), context=self.context)

    def _fault(self, stage: str) -> str:
        logger.exception("The guided decoding backend `%s` failed while %s.", self.backend.name, stage)
        return stage

    def _error(self, stage: str) -> Any:
        return self.serving.create_error_response(
            f"The guided decoding backend `{self.backend.name}` failed while {stage}; the server's log says why.",
            ERROR_TYPE,
            HTTPStatus.INTERNAL_SERVER_ERROR,
        )


_END = object()


def _plain(request: Any) -> dict[str, Any]:
    """The fields that the client sent, as JSON; the worker recreates the request from these."""
    sent: dict[str, Any] = request.model_dump(mode="json", exclude_unset=True)
    # Random if the client sent none; it must be the same in both processes.
    request_id = getattr(request, "request_id", None)
    return sent | {"request_id": request_id} if request_id else sent
