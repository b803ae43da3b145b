"""What a request carries: a JSON object or a multipart form, and the model it names."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from rayllm.errors import RequestError
from rayllm.serving.body import parse_body

# A form holds a file and a handful of fields; more is an attack.
_MAX_FIELDS = 100


@dataclass(frozen=True)
class Payload(ABC):
    """A request's body as it came, to be passed on untouched.

    `raw` holds the bytes, `content_type` the header that says what they are, and `model` the name that they mention.
    """

    raw: bytes
    content_type: str
    model: str

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, Any]:
        """The fields of a JSON object; none of a form, whose file is all that counts."""

    @property
    def wants_stream(self) -> bool:
        """Whether the reply is to be a stream."""
        return bool(self.fields.get("stream"))

    @property
    @abstractmethod
    def for_log(self) -> str:
        """What the log may hold of it: texts, but not the bytes of files."""

    @abstractmethod
    async def for_model(self, name: str) -> Payload:
        """The same request to another model."""


@dataclass(frozen=True)
class JsonPayload(Payload):
    """A JSON object."""

    body: dict[str, Any]

    @classmethod
    def parse(cls, raw: bytes, content_type: str) -> JsonPayload:
        """Read a JSON body.

        Raises:
            RequestError: it is no JSON object fit for an engine, or names no model.
        """
        body = parse_body(raw)
        return cls(raw, content_type, checked_model(body.get("model")), body)

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.body

    @property
    def for_log(self) -> str:
        return self.raw.decode(errors="replace")

    async def for_model(self, name: str) -> JsonPayload:
        body = {**self.body, "model": name}
        return JsonPayload(json.dumps(body).encode(), self.content_type, name, body)


@dataclass(frozen=True)
class FormPayload(Payload):
    """A multipart form, of which only the field `model` is read."""

    form: FormData

    @classmethod
    async def parse(cls, raw: bytes, request: Request) -> FormPayload:
        """Read a multipart body that was taken from `request`.

        Raises:
            RequestError: it is no multipart form, or names no model.
        """
        content_type = request.headers.get("content-type", "")
        if not content_type.startswith("multipart/form-data"):
            raise RequestError("The request body must be a multipart form (multipart/form-data).")

        async def receive() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        try:
            form = await Request(request.scope, receive).form(max_files=_MAX_FIELDS, max_fields=_MAX_FIELDS)
        except (HTTPException, MultiPartException) as error:
            # Which one it is depends on whether Starlette finds its application in the scope.
            told = error.detail if isinstance(error, HTTPException) else error.message
            raise RequestError(f"The request body is no multipart form: {told}") from None
        return cls(raw, content_type, checked_model(form.get("model")), form)

    @property
    def fields(self) -> Mapping[str, Any]:
        return {}

    @property
    def wants_stream(self) -> bool:
        return self.form.get("stream") in ("true", "True", "1")

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


def checked_model(model: Any) -> str:
    """The model that a request names.

    Raises:
        RequestError: it names none.
    """
    if model is None:
        raise RequestError("The field `model` is required.", "model")
    if not isinstance(model, str) or not model:
        raise RequestError("The field `model` must be a model's name.", "model")
    return model
