"""Translates deprecated request fields, and other services' response formats, to vLLM's.

vLLM ignores unknown fields, and so the constraint in a deprecated field. docs/api.md lists all of these.
"""

import json
from typing import Any

from rayllm.core.errors import RequestError

Body = dict[str, Any]

# deprecated field → key of `structured_outputs`
CONSTRAINTS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_WHITESPACE = "guided_whitespace_pattern"
_BACKEND = "guided_decoding_backend"
# Today's constraints, and the formats of a response that constrain it.
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_FORMATS = ("json_object", "json_schema", "structural_tag")
# The name of a schema that has none.
_SCHEMA_NAME = "answer"
# Deprecated top-level fields.
DEPRECATED_FIELDS = frozenset([*CONSTRAINTS, _WHITESPACE, _BACKEND])
# Backends that requests could name; today's backend of the server handles them all.
_BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")


def replace_deprecated(body: Body) -> Body:
    """A copy of `body` with today's fields. Raises RequestError for contradictions and removed features."""
    _check_best_of(body)
    if deprecated := _deprecated_in(body):
        body = _renamed(body, deprecated)
    _check_constraints(body)
    _check_whitespace(body)
    return with_schema(body)


def _renamed(body: Body, deprecated: Body) -> Body:
    _check_backend(deprecated.pop(_BACKEND, None))
    body = {name: value for name, value in body.items() if name not in DEPRECATED_FIELDS}
    today = {CONSTRAINTS.get(name, "whitespace_pattern"): value for name, value in deprecated.items()}
    if today:
        if body.get("structured_outputs") is not None:
            raise RequestError(
                f"`{next(iter(deprecated))}` and `structured_outputs` exclude each other.", next(iter(deprecated))
            )
        constraints = [name for name in deprecated if name in CONSTRAINTS]
        if len(constraints) > 1:
            raise RequestError(
                f"`{constraints[0]}` and `{constraints[1]}` exclude each other; give one constraint.", constraints[1]
            )
        body["structured_outputs"] = today
    return body


def _deprecated_in(body: Body) -> Body:
    """The deprecated fields in a request. NIM's clients put constraints into `nvext`."""
    nvext = body.get("nvext")
    nested = (
        {name: nvext[name] for name in CONSTRAINTS if nvext.get(name) is not None} if isinstance(nvext, dict) else {}
    )
    return nested | {name: body[name] for name in (*CONSTRAINTS, _WHITESPACE, _BACKEND) if body.get(name) is not None}


def _check_best_of(body: Body) -> None:
    best_of, n = body.get("best_of"), body.get("n") or 1
    if isinstance(best_of, int) and isinstance(n, int) and best_of > n:
        raise RequestError("vLLM no longer supports a `best_of` above `n`; ask for `n` choices.", "best_of")


def _check_backend(name: Any) -> None:
    """Check the name of a backend, which has no effect: vLLM's server now has one backend for all constraints."""
    # Options followed a colon: `xgrammar:no-fallback`.
    if name is not None and (not isinstance(name, str) or name.split(":")[0] not in _BACKENDS):
        raise RequestError(f"`{_BACKEND}` must be one of {', '.join(_BACKENDS)}.", _BACKEND)


def _check_constraints(body: Body) -> None:
    """Refuse two constraints: vLLM's message would list all its options, or vLLM would silently drop a constraint."""
    structured, response_format = body.get("structured_outputs"), body.get("response_format")
    kinds = [kind for kind in _KINDS if structured.get(kind) is not None] if isinstance(structured, dict) else []
    names = [f"structured_outputs.{kind}" for kind in kinds]
    if isinstance(response_format, dict) and response_format.get("type") in _FORMATS:
        names.append("response_format")
    if kinds and len(names) > 1:
        raise RequestError(
            f"`{names[0]}` and `{names[1]}` exclude each other; give one constraint.", "structured_outputs"
        )


def _check_whitespace(body: Body) -> None:
    structured = body.get("structured_outputs")
    if not isinstance(structured, dict) or structured.get("whitespace_pattern") is None:
        return
    if not isinstance(structured["whitespace_pattern"], str):
        raise RequestError("`structured_outputs.whitespace_pattern` must be a text.", "structured_outputs")
    if structured.get("json") is None:
        raise RequestError("A whitespace pattern goes with a JSON schema; give one.", "structured_outputs")
    if structured.get("disable_any_whitespace"):
        name = "structured_outputs.disable_any_whitespace"
        raise RequestError(f"A whitespace pattern and `{name}` exclude each other.", name)


def with_schema(body: Body) -> Body:
    """A copy of `body` with the response format in vLLM's form.

    Anyscale, Together and others take `{"type": "json_object", "schema": …}`, whose schema vLLM would ignore.

    Raises:
        RequestError: the format has no schema, or a schema that is not JSON.
    """
    response_format = body.get("response_format")
    if isinstance(response_format, dict) and (schema := _own_schema(response_format, "response_format")) is not None:
        named = {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema}}
        return {**body, "response_format": named}
    _check_schema(response_format)
    text: Any = body.get("text")
    asked = text.get("format") if isinstance(text, dict) else None
    if not isinstance(asked, dict) or asked.get("type") != "json_object":
        return body
    schema = _own_schema(asked, "text.format")
    flat = {"type": "json_schema", "name": _SCHEMA_NAME, "schema": schema}
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


def _check_schema(response_format: Any) -> None:
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
