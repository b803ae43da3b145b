"""The OpenAPI description of what a router answers, and the page of its fields.

The paths are those of the router. Fields of the models' endpoints are read from the installed vLLM, which validates
them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from replies import BYTES, Reply, replies

from rayllm.core.endpoints import ENDPOINTS, MODERATIONS
from rayllm.serving.router.application import DESCRIPTION as OPENAPI
from rayllm.serving.router.ui.pages import PATH as UI

Schema = dict[str, Any]

_TASKS = ("generate", "transcription", "embed", "classify", "token_embed", "token_classify")
_MAX_TYPES = 6
_ANNOTATIONS = ("description", "title", "examples", "example")
_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_KEY: Schema = {"type": "http", "scheme": "bearer", "description": "A key, or a token of the configured issuer."}
# Answered without a key.
_OPEN = ("/", "/health", UI)
_REFERENCE: Schema = {"$ref": "#/components/schemas/Error"}
_TEXT: Schema = {"type": "string"}
_EVENTS = "text/event-stream"
_STREAM = (
    f"Success. With `stream: true`, events: the schema of `{_EVENTS}` is that of the JSON in their `data`. Streams of "
    "chats, completions and speech end with `data: [DONE]`."
)


class _Own(NamedTuple):
    """A route that the router answers itself; `fields` are those of its JSON body, `form` of a form."""

    method: str
    path: str
    summary: str
    fields: Schema | None = None
    required: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    is_form: bool = False


_PAGES = ("after", "limit", "order")
OWN = (
    _Own("get", "/v1/models", "Models, aliases and adapters that the caller may use."),
    _Own("get", "/v1/models/{name}", "One of them."),
    _Own(
        "post",
        MODERATIONS,
        "Whether texts are safe, by a guard.",
        {"model": _TEXT, "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}},
        ("input",),
    ),
    _Own(
        "post",
        "/v1/files",
        "Store a file, where `router.batches` is set.",
        {"file": {"type": "string", "format": "binary"}, "purpose": _TEXT, "expires_after": {"type": "object"}},
        ("file", "purpose"),
        is_form=True,
    ),
    _Own("get", "/v1/files", "Files, newest first.", query=(*_PAGES, "purpose")),
    _Own("get", "/v1/files/{id}", "A file's description."),
    _Own("delete", "/v1/files/{id}", "Delete a file."),
    _Own("get", "/v1/files/{id}/content", "A file's content."),
    _Own(
        "post",
        "/v1/batches",
        "Process a file of requests.",
        {
            "input_file_id": _TEXT,
            "endpoint": _TEXT,
            "completion_window": _TEXT,
            "metadata": {"type": "object", "additionalProperties": _TEXT},
            "output_expires_after": {"type": "object"},
        },
        ("input_file_id", "endpoint", "completion_window"),
    ),
    _Own("get", "/v1/batches", "Batches, newest first.", query=_PAGES[:2]),
    _Own("get", "/v1/batches/{id}", "A batch."),
    _Own("post", "/v1/batches/{id}/cancel", "Cancel a batch."),
    _Own(
        "post",
        "/v1/load_lora_adapter",
        "Load an adapter by its location; for administrators.",
        {"lora_name": _TEXT, "lora_path": _TEXT, "load_inplace": {"type": "boolean", "default": False}},
        ("lora_name", "lora_path"),
    ),
    _Own(
        "post",
        "/v1/unload_lora_adapter",
        "Unload an adapter that was loaded so; for administrators.",
        {"lora_name": _TEXT},
        ("lora_name",),
    ),
    _Own(
        "get",
        "/v1/usage",
        "Requests and tokens of a key, or of all for administrators.",
        query=("group_by", "since", "until"),
    ),
    _Own("get", "/v1/keys", "What a key may do, or all keys for administrators.", query=("limit", "after")),
    _Own("get", "/v1/requests", "Where the time of recent requests went; for administrators.", query=("limit",)),
    _Own("get", "/v1/requests/{request_id}", "Where the time of one request went, by its `x-request-id`."),
    _Own("get", "/metrics", "Metrics of all processes, for Prometheus."),
    _Own("get", "/", "As `/health`, for agents that try the base address first."),
    _Own("get", "/health", "Whether the router's process is alive."),
    _Own(
        "get",
        "/ready",
        "Whether every model can answer or will scale from zero; with a key, if there are any, their phases.",
    ),
    _Own("get", "/version", "Versions of RayLLM, Ray and vLLM."),
    _Own("get", OPENAPI, "This description, as OpenAPI."),
    _Own("get", UI, "A page for people."),
)


def description() -> Schema:
    """The OpenAPI description. Imports vLLM."""
    answered = replies()
    theirs = _fastapis(answered)
    schemas = {name: _bare(schema) for name, schema in theirs["components"]["schemas"].items()}
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        content = theirs["paths"][endpoint.path]["post"]["requestBody"]["content"]
        body = {kind: {"schema": _bare(found["schema"])} for kind, found in content.items()}
        paths[endpoint.path] = {"post": _operation(f"{endpoint.does.capitalize()}.", body)}
    for own in OWN:
        paths.setdefault(own.path, {})[own.method] = _own_operation(own)
    for (method, path), reply in answered.items():
        paths[path][method]["responses"]["200"] = _success(theirs, method, path, reply)
    for name in _body_schemas(paths):
        schema = schemas[name]
        if "model" in schema.get("properties", {}):
            schema["required"] = list(dict.fromkeys(["model", *schema.get("required", ())]))
    for path in _OPEN:
        paths[path]["get"]["security"] = []
    used = _used(paths, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "RayLLM", "version": "1", "description": "What a router of RayLLM answers."},
        # Beside this description, wherever the application's route prefix puts it.
        "servers": [{"url": "./"}],
        # The empty one is for services without keys.
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": _KEY},
            "schemas": {"Error": _ERROR} | {name: schemas[name] for name in sorted(used - {"Error"})},
        },
    }


def openapi_json(described: Schema) -> str:
    """The file that routers serve."""
    return json.dumps(described, indent=1, ensure_ascii=False) + "\n"


def http_page(described: Schema) -> str:
    """docs/http-reference.md: the fields of every endpoint."""
    parts = [_PAGE_HEAD, "## Models' endpoints\n"]
    for endpoint in ENDPOINTS:
        parts += _section("POST", endpoint.path, described["paths"][endpoint.path]["post"], described)
    parts.append("## The router's own endpoints\n")
    for own in OWN:
        parts += _section(own.method.upper(), own.path, described["paths"][own.path][own.method], described)
    return "\n".join(parts).rstrip() + "\n"


_PAGE_HEAD = """\
# Endpoints and their fields

Generated by `make generate` from [openapi.json](../rayllm/serving/router/openapi.json), which describes nested objects
as well. Routers serve it at `/openapi.json`.

The router answers these endpoints. Which fields a model's endpoint has is up to vLLM; these are those of the version
that RayLLM locks. [The HTTP API](api.md) says what is particular to RayLLM: limits, extra and deprecated fields.

Errors have the form of `Error`: an object `error` with `message`, `type`, `param` and `code`; [errors.md](errors.md)
lists the codes.
"""


def _fastapis(answered: Mapping[tuple[str, str], Reply]) -> Schema:
    """FastAPI's description of vLLM's routes, and of one route for each body of a reply."""
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    defaults = {one.name: _default(one) for one in dataclasses.fields(FrontendArgs)}
    model: Any = Namespace(get_pooling_task=lambda tasks: "embed")  # all that routes ask of a model
    app = build_app(Namespace(**defaults), _TASKS, model)
    # Fields with defaults are not required: replies may leave them out.
    app.separate_input_output_schemas = False
    for (method, path), reply in answered.items():
        for kind, body in (("body", reply.body), ("events", reply.events)):
            app.add_api_route(f"/{kind}/{method}{path}", replies, methods=[method], response_model=body)
    described: Schema = app.openapi()
    return described


def _success(theirs: Schema, method: str, path: str, reply: Reply) -> Schema:
    def schema(kind: str) -> Schema:
        found = theirs["paths"][f"/{kind}/{method}{path}"][method]["responses"]["200"]
        bare: Schema = _bare(found["content"]["application/json"]["schema"])
        return bare

    content: Schema = {"application/json": {"schema": schema("body")}} if reply.body else {}
    content |= {kind: {} if kind == BYTES else {"schema": _TEXT} for kind in reply.others}
    if not reply.events:
        return {"description": "Success", "content": content}
    content[_EVENTS] = {"schema": {"anyOf": [schema("events"), _REFERENCE]}}
    return {"description": _STREAM, "content": content}


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _bare(schema: Any, is_properties: bool = False) -> Any:
    """A schema without its prose."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema if is_properties else {name: one for name, one in schema.items() if name not in _ANNOTATIONS}
    return {
        name: one
        if name in ("default", "enum", "const", "required") and not is_properties
        else _bare(one, name == "properties" and not is_properties)
        for name, one in kept.items()
    }


def _operation(summary: str, content: Schema | None = None, parameters: list[Schema] | None = None) -> Schema:
    error = {"application/json": {"schema": _REFERENCE}}
    operation: Schema = {"summary": summary}
    if parameters:
        operation["parameters"] = parameters
    if content:
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = {"default": {"description": "Error", "content": error}}
    return operation


def _own_operation(own: _Own) -> Schema:
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in re.findall(r"{(\w+)}", own.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": _TEXT} for name in own.query]
    content = None
    if own.fields:
        schema = {"type": "object", "required": list(own.required), "properties": own.fields}
        content = {"multipart/form-data" if own.is_form else "application/json": {"schema": schema}}
    return _operation(own.summary, content, parameters)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.rpartition("/")[2]
        schema = list(schema.values())
    if isinstance(schema, list):
        for one in schema:
            yield from _references(one)


def _body_schemas(paths: Schema) -> set[str]:
    bodies = [operation.get("requestBody") for found in paths.values() for operation in found.values()]
    return set(_references(bodies))


def _used(paths: Schema, schemas: Schema) -> set[str]:
    found: set[str] = set()
    waiting = list(_references(paths))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(schemas.get(name))
    return found


def _section(method: str, path: str, operation: Schema, described: Schema) -> Iterator[str]:
    yield f"### `{method} {path}`\n\n{operation['summary']}\n"
    if parameters := operation.get("parameters"):
        listed = ", ".join(f"`{one['name']}`" for one in parameters if one["in"] == "query")
        if listed:
            yield f"Parameters of the query: {listed}.\n"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        variants = _variants(content["schema"], described)
        for index, (name, schema) in enumerate(variants):
            if kind == "multipart/form-data":
                yield "A multipart form.\n"
            if len(variants) > 1:
                yield f"{'Either' if index == 0 else 'Or'} `{name}`:\n"
            yield _fields(schema)
    for kind, content in operation["responses"]["200"]["content"].items():
        yield from _answer(kind, content.get("schema", {}), described)


def _answer(kind: str, schema: Schema, described: Schema) -> Iterator[str]:
    variants = _variants(schema, described)
    if kind == _EVENTS:
        yield f"Streams {', '.join(f'`{name}`' for name, _ in variants)}.\n"
        return
    for name, variant in variants:
        yield f"Returns {f'`{name}`:' if name else f'`{kind}`.'}\n"
        if fields := variant.get("properties"):
            rows = [f"| `{field}` | {_type(found)} |" for field, found in fields.items()]
            yield "\n".join(["| field | type |", "|---|---|", *rows]) + "\n"


def _variants(schema: Schema, described: Schema) -> list[tuple[str, Schema]]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = described["components"]["schemas"][name]
        return _variants(target, described) if "properties" not in target and "anyOf" in target else [(name, target)]
    return [found for one in schema.get("anyOf", ()) for found in _variants(one, described)] or [("", schema)]


def _fields(schema: Schema) -> str:
    rows = ["| field | type | default |", "|---|---|---|"]
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        rows.append(f"| `{name}` | {_type(field)} | {default} |".replace("  |", " |"))
    return "\n".join(rows) + "\n"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " \\| ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            types = dict.fromkeys(_type(one) for one in schema[key] if one.get("type") != "null")
            return " \\| ".join(types) if len(types) <= _MAX_TYPES else "mapping of several kinds"
    if "allOf" in schema:
        return _type(schema["allOf"][0])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {_type(items)}" if items else "list"
    if isinstance(kind, list):
        return " \\| ".join(kind)
    bounds = [
        f"{sign} {_plain(schema[key])}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in schema
    ]
    name = {"string": "text", "boolean": "true/false", "object": "mapping"}.get(kind or "", kind or "any")
    return " ".join([name, *bounds])


def _plain(number: float) -> str:
    return f"{number:,.0f}".replace(",", "") if abs(number) < 1e6 and number == int(number) else f"{number:g}"
