"""`/openapi.json`: what the router says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Route

from rayllm.serving.router.application import DESCRIPTION as PATH
from rayllm.serving.router.application import DESCRIPTION_FILE as FILE
from rayllm.serving.router.application import describe

DESCRIPTION = json.loads(FILE.read_text())
SCHEMAS = DESCRIPTION["components"]["schemas"]
OPERATIONS = [(method, path) for path, found in DESCRIPTION["paths"].items() for method in found]


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_it_is_served_as_it_was_generated(encoding: str) -> None:
    app = httpx.ASGITransport(Starlette(routes=[Route(PATH, describe)]))
    async with httpx.AsyncClient(transport=app, base_url="http://x", headers={"accept-encoding": encoding}) as client:
        reply = await client.get(PATH)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert (reply.headers.get("content-encoding", "identity"), reply.headers["vary"]) == (encoding, "accept-encoding")
    assert reply.content == FILE.read_bytes()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_endpoint_describes_what_it_answers(method: str, path: str) -> None:
    content = DESCRIPTION["paths"][path][method]["responses"]["200"]["content"]
    assert content
    for kind, body in content.items():
        assert body.get("schema") or kind == "application/octet-stream"


def test_schemas_are_valid_and_lead_to_each_other() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    assert set(references(DESCRIPTION)) == {f"#/components/schemas/{name}" for name in SCHEMAS}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from references(one)
