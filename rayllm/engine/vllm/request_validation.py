"""How vLLM's application reads requests: up to the first fault of a list, and told in sentences.

Pydantic gathers every fault of every entry, once for each kind that the entry might be, and vLLM writes them all out
with the entries' text: seconds for a request of some kilobytes.
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
_TOLD = 5
_LONGEST = 500


def validate_cheaply(server: FastAPI) -> None:
    """Let an application that has not answered yet read its requests so."""
    for route in server.routes:
        if isinstance(route, APIRoute):
            for field in route.dependant.body_params:
                adapter = field._type_adapter
                # Without what it has built before: that gathers all faults.
                adapter.validator = SchemaValidator(_fail_fast(adapter.core_schema), _use_prebuilt=False)
    server.add_exception_handler(RequestValidationError, _refuse)
    # vLLM has built it already, with the handlers that there were.
    server.middleware_stack = server.build_middleware_stack()


def _fail_fast(schema: Any) -> Any:
    """A copy of a schema in which every list ends with its first fault."""
    if isinstance(schema, dict):
        copy = {key: _fail_fast(value) for key, value in schema.items()}
        return {**copy, "fail_fast": True} if schema.get("type") in _LISTS else copy
    if isinstance(schema, list | tuple):
        return type(schema)(_fail_fast(item) for item in schema)
    return schema


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """What vLLM's own handler answers, without the request's text."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  (registered for it)
    message, param = told(error.errors())
    body = {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    return JSONResponse({"error": body}, status_code=400)


def told(findings: Sequence[Any]) -> tuple[str, str | None]:
    """A message for pydantic's findings, and the field at fault."""
    known = [finding for finding in findings if isinstance(finding, dict)]
    if not known:
        return (str(findings[0]) if findings else "The request is not valid."), None
    places = [_place(finding["loc"]) for finding in known]
    sentences = [
        ": ".join(filter(None, (".".join(place), finding["msg"].rstrip(".")[:_LONGEST])))
        for place, finding in zip(places, known[:_TOLD], strict=False)
    ]
    # Where a request may have one of several shapes, what the others lack is no fault.
    likely = [place for place, finding in zip(places, known, strict=True) if finding["type"] != "missing"] or places
    return "; ".join(dict.fromkeys(sentences)) + ".", _param(known) or next((p[0] for p in likely if p), None)


def _param(findings: Sequence[dict[str, Any]]) -> str | None:
    """The field that a check of vLLM's own names."""
    errors = (finding.get("ctx", {}).get("error") for finding in findings)
    return next((name for error in errors if (name := getattr(error, "parameter", None))), None)


def _place(location: Sequence[Any]) -> list[str]:
    """Where in the request, without the names of types."""
    return [part for part in map(str, location[1:]) if not (("[" in part or "(" in part) and not part.endswith("[]"))]
