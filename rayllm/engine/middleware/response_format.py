"""JSON schemas in a request's response format, in the forms of several OpenAI-compatible services."""

from __future__ import annotations

import json
from typing import Any

from rayllm.core.errors import RequestError

Body = dict[str, Any]

_NAME = "answer"


def with_schema(body: Body) -> Body:
    """A copy of `body` with the response format in vLLM's form.

    Anyscale, Together and others take `{"type": "json_object", "schema": …}`, whose schema vLLM would ignore.

    Raises:
        RequestError: the format has no schema, or a schema that is not JSON.
    """
    response_format = body.get("response_format")
    if isinstance(response_format, dict) and (schema := _own_schema(response_format, "response_format")) is not None:
        named = {"type": "json_schema", "json_schema": {"name": _NAME, "schema": schema}}
        return {**body, "response_format": named}
    _check(response_format)
    text: Any = body.get("text")
    asked = text.get("format") if isinstance(text, dict) else None
    if not isinstance(asked, dict) or asked.get("type") != "json_object":
        return body
    schema = _own_schema(asked, "text.format")
    flat = {"type": "json_schema", "name": _NAME, "schema": schema}
    return body if schema is None else {**body, "text": {**text, "format": flat}}


def _own_schema(response_format: Body, param: str) -> Any:
    """The schema in a response format, if vLLM would ignore the schema there; otherwise None."""
    holder, schema = response_format.get("json_schema"), response_format.get("schema")
    if schema is not None and holder is not None:
        raise RequestError(f"`{param}` has two schemas, in `schema` and in `json_schema`; give one.", param)
    if response_format.get("type") == "json_object" and isinstance(holder, dict):
        schema = holder.get("schema", holder)
    if response_format.get("type") not in ("json_object", "json_schema") or schema is None:
        return None
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise RequestError(f"`{param}.schema` must be a JSON schema, an object.", param)
    return parsed


def _check(response_format: Any) -> None:
    """Refuse a `json_schema` without a `schema` in it: a client may have sent the schema itself."""
    if not isinstance(response_format, dict) or response_format.get("type") != "json_schema":
        return
    holder = response_format.get("json_schema")
    if not isinstance(holder, dict) or holder.get("schema") is None:
        raise RequestError(
            '`response_format` needs its schema in this form: `{"type": "json_schema", "json_schema": {"name": '
            '"answer", "schema": {"type": "object", …}}}`.',
            "response_format",
        )
