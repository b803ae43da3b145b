"""Request payloads: a JSON object or a multipart form."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self

import aiohttp
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.types import Message, Scope

from rayllm.core.asgi import read_form
from rayllm.core.hosted_tools import HostedTool
from rayllm.routing import RoutingRequest, routing_request
from rayllm.serving.router.requests.body_summary import Summary, checked_model
from rayllm.serving.router.requests.demand import Demand, demand_of_form
from rayllm.serving.router.requests.tools import Tools

# More fields than any real request has.
_MAX_FIELDS = 100
# Bytes of a form parsed between two turns of the event loop; some 2 ms.
_SLICE = 64 * 1024


@dataclass(frozen=True)
class Payload(ABC):
    """A request's body, forwarded unchanged.

    `raw` is the body, `content_type` its header, and `model` the name in it. `wants_stream` says whether the reply is
    to be a stream; `routing` has the features for routing, as a request to the base model, and `demand` what the
    request may take.
    """

    raw: bytes
    content_type: str
    model: str
    wants_stream: bool
    routing: RoutingRequest
    demand: Demand

    @property
    @abstractmethod
    def for_log(self) -> str:
        """The payload for the log: texts, without the contents of files."""

    @abstractmethod
    async def for_model(self, name: str) -> Self:
        """The same request for another model."""


@dataclass(frozen=True)
class JsonPayload(Payload):
    """A JSON object. `tools` are its tools if some are hosted."""

    tools: Tools | None

    @classmethod
    def from_raw(cls, raw: bytes, content_type: str, summary: Summary) -> Self:
        return cls(raw, content_type, **vars(summary))

    @property
    def for_log(self) -> str:
        return self.raw.decode(errors="replace")

    async def for_model(self, name: str) -> Self:
        return replace(self, raw=self._raw_with(f'"model": {json.dumps(name)}'), model=name)

    def without_hosted_tools(self, has_tool_server: bool) -> tuple[Self, list[HostedTool]]:
        """The request without the hosted tools that are not run, and the types of these tools.

        Raises RequestError if `tool_choice` calls one of them.
        """
        if self.tools is None or not (ignored := self.tools.ignored(has_tool_server)):
            return self, []
        return replace(self, raw=self._raw_with(self.tools.fields_without_ignored(has_tool_server))), ignored

    def _raw_with(self, fields: str) -> bytes:
        # Parsers take the last of two fields of the same name, and the body may be too large to serialize again.
        return self.raw.rstrip()[:-1] + b", " + fields.encode() + b"}"


@dataclass(frozen=True)
class FormPayload(Payload):
    """A multipart form. Of its parts, only the texts are kept beside its bytes.

    `fields` holds those texts by name, and `files` the name and size in bytes of each file by its field.
    """

    fields: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str | None, int | None], ...]

    @classmethod
    async def parse(cls, raw: bytes, request: Request) -> Self:
        """Parse a multipart body. Raises RequestError for no multipart form, or one without a model."""
        content_type = request.headers.get("content-type", "")
        async with _form(raw, request.scope) as form:
            items = form.multi_items()
            fields = tuple((name, value) for name, value in items if isinstance(value, str))
            files = tuple((name, value.filename, value.size) for name, value in items if not isinstance(value, str))
            model, wants_stream = checked_model(form.get("model")), form.get("stream") in ("true", "True", "1")
            demand = demand_of_form(len(raw), fields)
            routing = routing_request({}, demand.prompt_bytes, demand.answer_limit)
            return cls(raw, content_type, model, wants_stream, routing, demand, fields, files)

    @property
    def for_log(self) -> str:
        texts = [f"{name}={value!r}" for name, value in self.fields]
        return ", ".join(texts + [f"{name}={filename!r} ({size} bytes)" for name, filename, size in self.files])

    async def for_model(self, name: str) -> Self:
        writer = aiohttp.FormData(default_to_multipart=True)
        headers = [(b"content-type", self.content_type.encode("latin-1"))]
        async with _form(self.raw, {"type": "http", "method": "POST", "headers": headers}) as form:
            for key, value in form.multi_items():
                if isinstance(value, UploadFile):
                    writer.add_field(key, await value.read(), filename=value.filename, content_type=value.content_type)
                else:
                    writer.add_field(key, name if key == "model" else value)
        written = writer()
        return replace(self, raw=await written.as_bytes(), content_type=written.content_type, model=name)


@asynccontextmanager
async def _form(raw: bytes, scope: Scope) -> AsyncIterator[FormData]:
    """A multipart body's fields and files, which are closed at the end; raises as `read_form`."""
    slices = _slices(raw)

    async def receive() -> Message:
        return await anext(slices)

    form = await read_form(Request(scope, receive), max_files=_MAX_FIELDS, max_fields=_MAX_FIELDS)
    try:
        yield form
    finally:
        await form.close()


async def _slices(raw: bytes) -> AsyncIterator[Message]:
    """The body as ASGI messages, with a turn of the event loop after each."""
    for start in range(0, max(1, len(raw)), _SLICE):
        body = raw[start : start + _SLICE]
        yield {"type": "http.request", "body": body, "more_body": start + _SLICE < len(raw)}
        await asyncio.sleep(0)
