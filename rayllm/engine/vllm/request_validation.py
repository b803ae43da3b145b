"""Cheaper request validation in vLLM's application: lists are validated up to their first error.

Pydantic collects every error of every entry, for each type that the entry might have, and vLLM returns them all with
the entries' text: seconds for a request of a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import SchemaValidator
from starlette.requests import Request
from starlette.responses import JSONResponse

_LISTS = ("list", "tuple", "set", "frozenset")
_MAX_ERRORS = 5
_MAX_MESSAGE = 500


def validate_cheaply(server: FastAPI) -> None:
    """Patch an application that has not served a request yet."""
    for route in server.routes:
        if isinstance(route, APIRoute):
            for field in route.dependant.body_params:
                adapter = field._type_adapter
                # Without prebuilt parts: those collect all errors.
                adapter.validator = SchemaValidator(_fail_fast(adapter.core_schema), _use_prebuilt=False)
    server.add_exception_handler(RequestValidationError, _refuse)
    # vLLM has built the stack already, with the earlier handlers.
    server.middleware_stack = server.build_middleware_stack()


def _fail_fast(schema: Any) -> Any:
    """A copy of a schema in which every list stops at its first error."""
    if isinstance(schema, dict):
        copy = {key: _fail_fast(value) for key, value in schema.items()}
        return {**copy, "fail_fast": True} if schema.get("type") in _LISTS else copy
    if isinstance(schema, list | tuple):
        return type(schema)(_fail_fast(item) for item in schema)
    return schema


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """vLLM's error reply, without the request's text."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  (registered for it)
    message, param = describe_errors(error.errors())
    body = {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    return JSONResponse({"error": body}, status_code=400)


def describe_errors(errors: Sequence[Any]) -> tuple[str, str | None]:
    """A message for pydantic's errors, and the field at fault."""
    details = [error for error in errors if isinstance(error, dict)]
    if not details:
        return (str(errors[0]) if errors else "The request is not valid."), None
    field_paths = [_field_path(error["loc"]) for error in details]
    sentences = [
        ": ".join(filter(None, (".".join(field_path), error["msg"].rstrip(".")[:_MAX_MESSAGE])))
        for field_path, error in zip(field_paths, details[:_MAX_ERRORS], strict=False)
    ]
    # If a request may have one of several shapes, fields missing from the others are no errors.
    likely = [
        field_path for field_path, error in zip(field_paths, details, strict=True) if error["type"] != "missing"
    ] or field_paths
    return "; ".join(dict.fromkeys(sentences)) + ".", _param(details) or next((p[0] for p in likely if p), None)


def _param(errors: Sequence[dict[str, Any]]) -> str | None:
    """The field named by a validator of vLLM."""
    exceptions = (error.get("ctx", {}).get("error") for error in errors)
    return next((name for exception in exceptions if (name := getattr(exception, "parameter", None))), None)


def _field_path(location: Sequence[Any]) -> list[str]:
    """Path of a field in the request, without type names."""
    return [part for part in map(str, location[1:]) if not (("[" in part or "(" in part) and not part.endswith("[]"))]
