"""JSON schemas in a request's response format, in the forms that OpenAI-compatible services have had."""

from __future__ import annotations

import json
from typing import Any

from rayllm.errors import RequestError

Body = dict[str, Any]

_NAME = "answer"


def with_schema(body: Body) -> Body:
    """`body` with the schema of its response format where vLLM reads it; the original is left unchanged.

    Anyscale, Together and others take `{"type": "json_object", "schema": …}`, whose schema vLLM would ignore.

    Raises:
        RequestError: the format has no schema, or one that is not JSON.
    """
    response_format = body.get("response_format")
    if isinstance(response_format, dict) and (schema := _own_schema(response_format, "response_format")) is not None:
        named = {"type": "json_schema", "json_schema": {"name": _NAME, "schema": schema}}
        return {**body, "response_format": named}
    _check(response_format)
    text: Any = body.get("text")
    asked = text.get("format") if isinstance(text, dict) else None
    if not isinstance(asked, dict) or asked.get("type") != "json_object" or asked.get("schema") is None:
        return body
    named = {"type": "json_schema", "name": _NAME, "schema": _own_schema(asked, "text.format")}
    return {**body, "text": {**text, "format": named}}


def _own_schema(response_format: Body, param: str) -> Any:
    """The schema beside the `type` of a response format."""
    if response_format.get("type") not in ("json_object", "json_schema") or response_format.get("json_schema"):
        return None
    schema = response_format.get("schema")
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise RequestError(f"`{param}.schema` is not valid JSON.", param) from None


def _check(response_format: Any) -> None:
    """Refuse a `json_schema` that holds no schema: it may be the schema itself."""
    if not isinstance(response_format, dict) or response_format.get("type") != "json_schema":
        return
    holder = response_format.get("json_schema")
    if not isinstance(holder, dict) or holder.get("schema") is None:
        raise RequestError(
            '`response_format` needs its schema in this form: `{"type": "json_schema", "json_schema": {"name": '
            '"answer", "schema": {"type": "object", …}}}`.',
            "response_format",
        )
