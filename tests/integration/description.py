"""Replies beside the OpenAPI description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from rayllm.serving.router.application import DESCRIPTION_FILE as FILE

DESCRIPTION: dict[str, Any] = json.loads(FILE.read_text())
_SCHEMAS = DESCRIPTION["components"]["schemas"]


def check_described(reply: httpx.Response, path: str) -> None:
    """Assert that the description allows a reply, and knows all of its fields.

    Args:
        reply: any reply, a stream's included.
        path: its endpoint's path in the description.
    """
    responses = DESCRIPTION["paths"][path][reply.request.method.lower()]["responses"]
    kind = reply.headers["content-type"].partition(";")[0]
    schema = responses.get(str(reply.status_code), responses["default"])["content"][kind].get("schema", {})
    validator = Draft202012Validator({**schema, "components": _COMPONENTS})
    bodies = _data(reply.text) if kind == "text/event-stream" else [reply.json() if "json" in kind else reply.text]
    for body in bodies:
        validator.validate(body)


def _data(text: str) -> Iterator[Any]:
    """The JSON of each event of a stream."""
    for line in text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _closed(schema: Any) -> Any:
    """A schema that allows only the fields that it describes."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(one) for name, one in schema.items()}
    return {**closed, "additionalProperties": False} if "properties" in schema else closed


# Errors say more at some endpoints.
_COMPONENTS = {"schemas": {**_closed(_SCHEMAS), "Error": _SCHEMAS["Error"]}}
