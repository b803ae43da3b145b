"""Makes vLLM's request validation stop at a list's first error, and take nulls for absent values.

Pydantic collects every error of every entry, for each type that the entry might have, and vLLM returns all errors with
the entries' text: seconds for a request of a few kilobytes. And pydantic refuses nulls in most optional fields, while
OpenAI's clients send a null for each option that is not set.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import SchemaValidator
from starlette.requests import Request
from starlette.responses import JSONResponse

_LISTS = ("list", "tuple", "set", "frozenset")
_OBJECTS = ("model-fields", "typed-dict", "dataclass-args")
_MAX_ERRORS = 5
_MAX_MESSAGE = 500


def validate_cheaply(server: FastAPI) -> None:
    """Patch vLLM's application before its first request."""
    for route in server.routes:
        if isinstance(route, APIRoute):
            for field in route.dependant.body_params:
                adapter = field._type_adapter
                adapter.validator = lenient_validator(adapter.core_schema)
    server.add_exception_handler(RequestValidationError, _refuse)
    # vLLM has built the stack already, with the earlier handlers.
    server.middleware_stack = server.build_middleware_stack()


def lenient_validator(schema: Any) -> SchemaValidator:
    """A validator that stops at the first error in a list, and takes nulls for absent values."""
    # Prebuilt parts collect all errors.
    return SchemaValidator(_lenient(schema), _use_prebuilt=False)


def _lenient(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_lenient(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    copy = {key: _lenient(value) for key, value in schema.items()}
    if schema.get("type") in _LISTS:
        return {**copy, "fail_fast": True}
    if schema.get("type") in _OBJECTS and (names := frozenset(_fields_without_null(schema))):
        # References point to the outer schema.
        reference = {"ref": copy.pop("ref")} if "ref" in copy else {}
        function = {"type": "no-info", "function": _without_nulls(names)}
        return {"type": "function-before", "function": function, "schema": copy, **reference}
    return copy


def _without_nulls(names: frozenset[str]) -> Callable[[Any], Any]:
    def drop(value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        return {name: item for name, item in value.items() if item is not None or name not in names}

    return drop


def _fields_without_null(schema: dict[str, Any]) -> Iterator[str]:
    """The optional fields of an object that may not be null."""
    fields = schema["fields"]
    for name, field in fields.items() if isinstance(fields, dict) else ((field["name"], field) for field in fields):
        is_optional = field["schema"]["type"] == "default" or field.get("required") is False
        if is_optional and not _takes_null(field["schema"]):
            yield name
            if isinstance(alias := field.get("validation_alias"), str):
                yield alias


def _takes_null(schema: dict[str, Any]) -> bool:
    kind = schema["type"]
    if kind == "literal":
        return None in schema["expected"]
    if kind == "union":
        return any(_takes_null(choice[0] if isinstance(choice, tuple) else choice) for choice in schema["choices"])
    return kind in ("nullable", "none", "any") or ("schema" in schema and _takes_null(schema["schema"]))


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """Reply as vLLM does, but without the request's text."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  (registered for it)
    message, param = describe_errors(error.errors())
    body = {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    return JSONResponse({"error": body}, status_code=400)


def describe_errors(errors: Sequence[Any]) -> tuple[str, str | None]:
    """A message for pydantic's errors in a request's body, and the field at fault."""
    details = [error for error in errors if isinstance(error, dict)]
    if not details:
        return (str(errors[0]) if errors else "The request is not valid."), None
    sentences = dict.fromkeys(_sentence(error) for error in details[:_MAX_ERRORS])
    # If a request may have one of several shapes, fields missing from the other shapes are no errors.
    likely = [error for error in details if error["type"] != "missing"] or details
    params = (path[0] for error in likely if (path := _field_path(error["loc"])))
    return "; ".join(sentences) + ".", _param(details) or next(params, None)


def describe_validation_error(error: ValidationError) -> tuple[str, str | None]:
    """A message for the error of one of vLLM's models, and the field at fault."""
    details = error.errors(include_url=False, include_input=False)
    return describe_errors([{**detail, "loc": ("body", *detail["loc"])} for detail in details])


def _sentence(error: dict[str, Any]) -> str:
    path = ".".join(_field_path(error["loc"]))
    if error["type"] == "missing":
        return f"`{path}` is required" if path else "The request body is required"
    cause = error.get("ctx", {}).get("error")
    # Pydantic puts the type of an exception before its text, and vLLM's exceptions repeat the parameter after it.
    said = str(cause.args[0]) if isinstance(cause, Exception) and cause.args else error["msg"]
    return ": ".join(filter(None, (path, said.rstrip(".")[:_MAX_MESSAGE])))


def _param(errors: Sequence[dict[str, Any]]) -> str | None:
    exceptions = (error.get("ctx", {}).get("error") for error in errors)
    return next((name for exception in exceptions if (name := getattr(exception, "parameter", None))), None)


def _field_path(location: Sequence[Any]) -> list[str]:
    return [part for part in map(str, location[1:]) if not (("[" in part or "(" in part) and not part.endswith("[]"))]
