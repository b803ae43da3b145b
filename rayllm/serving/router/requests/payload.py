"""Request payloads: a JSON object or a multipart form."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from rayllm.errors import RequestError
from rayllm.routing import RoutingRequest, routing_request
from rayllm.serving.router.requests.body_summary import Summary, checked_model

# More fields than any real request has.
_MAX_FIELDS = 100
# Bytes of a form parsed between two turns of the event loop; some 2 ms.
_SLICE = 64 * 1024


@dataclass(frozen=True)
class Payload(ABC):
    """A request's body, forwarded unchanged.

    `raw` is the body, `content_type` its header, and `model` the name in it.
    """

    raw: bytes
    content_type: str
    model: str

    @property
    @abstractmethod
    def wants_stream(self) -> bool:
        """Whether the reply is to be a stream."""

    @property
    @abstractmethod
    def routing(self) -> RoutingRequest:
        """Features for routing, as a request to the base model."""

    @property
    @abstractmethod
    def for_log(self) -> str:
        """The payload for the log: texts, without the contents of files."""

    @abstractmethod
    async def for_model(self, name: str) -> Payload:
        """The same request for another model."""


@dataclass(frozen=True)
class JsonPayload(Payload):
    """A JSON object."""

    summary: Summary

    @classmethod
    def of(cls, raw: bytes, content_type: str, summary: Summary) -> JsonPayload:
        """A payload from a body and its summary."""
        return cls(raw, content_type, summary.model, summary)

    @property
    def wants_stream(self) -> bool:
        return self.summary.wants_stream

    @property
    def routing(self) -> RoutingRequest:
        return self.summary.routing

    @property
    def for_log(self) -> str:
        return self.raw.decode(errors="replace")

    async def for_model(self, name: str) -> JsonPayload:
        # Parsers take the last of two fields of the same name, and the body may be too large to serialize again.
        raw = self.raw.rstrip()[:-1] + b', "model": ' + json.dumps(name).encode() + b"}"
        return JsonPayload(raw, self.content_type, name, self.summary)


@dataclass(frozen=True)
class FormPayload(Payload):
    """A multipart form; only its field `model` is read."""

    form: FormData

    @classmethod
    async def parse(cls, raw: bytes, request: Request) -> FormPayload:
        """Parse a multipart body.

        Raises:
            RequestError: not a multipart form, or without a model.
        """
        content_type = request.headers.get("content-type", "")
        if not content_type.startswith("multipart/form-data"):
            raise RequestError("The request body must be a multipart form (multipart/form-data).")

        slices = _slices(raw)

        async def receive() -> Message:
            return await anext(slices)

        try:
            form = await Request(request.scope, receive).form(max_files=_MAX_FIELDS, max_fields=_MAX_FIELDS)
        except (HTTPException, MultiPartException) as error:
            # Starlette raises the one or the other, depending on whether its application is in the scope.
            detail = error.detail if isinstance(error, HTTPException) else error.message
            raise RequestError(f"The request body is no multipart form: {detail}") from None
        return cls(raw, content_type, checked_model(form.get("model")), form)

    @property
    def wants_stream(self) -> bool:
        return self.form.get("stream") in ("true", "True", "1")

    @property
    def routing(self) -> RoutingRequest:
        return routing_request({}, len(self.raw))

    @property
    def for_log(self) -> str:
        fields = (
            f"{key}={value!r}" if isinstance(value, str) else f"{key}={value.filename!r} ({value.size} bytes)"
            for key, value in self.form.multi_items()
        )
        return ", ".join(fields)

    async def for_model(self, name: str) -> FormPayload:
        form = aiohttp.FormData(default_to_multipart=True)
        for key, value in self.form.multi_items():
            if isinstance(value, UploadFile):
                await value.seek(0)
                form.add_field(key, await value.read(), filename=value.filename, content_type=value.content_type)
            else:
                form.add_field(key, name if key == "model" else value)
        written = form()
        return FormPayload(await written.as_bytes(), written.content_type, name, self.form)


async def _slices(raw: bytes) -> AsyncIterator[Message]:
    """The body as ASGI messages, with a turn of the event loop after each."""
    for start in range(0, max(1, len(raw)), _SLICE):
        body = raw[start : start + _SLICE]
        yield {"type": "http.request", "body": body, "more_body": start + _SLICE < len(raw)}
        await asyncio.sleep(0)
