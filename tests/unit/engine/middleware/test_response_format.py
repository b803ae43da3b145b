"""Schemas of response formats, in the places where clients put them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.middleware.deprecated_fields import with_schema

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        ({"response_format": NAMED}, {"response_format": NAMED}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"response_format": NAMED}),
        ({"response_format": {"type": "json_object", "schema": json.dumps(SCHEMA)}}, {"response_format": NAMED}),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, {"response_format": NAMED}),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"response_format": NAMED}),
        ({"text": {"format": {"type": "json_object", "schema": SCHEMA}}}, {"text": {"format": FLAT}}),
        ({"text": {"format": FLAT}}, {"text": {"format": FLAT}}),
        ({"response_format": 7, "text": "x"}, {"response_format": 7, "text": "x"}),
    ],
)
def test_a_schema_is_put_where_vllm_reads_it(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert with_schema(body) == expected


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": None}},
        {"type": "json_object", "schema": "{"},
        {"type": "json_object", "schema": "null"},
        {"type": "json_object", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
    ],
)
def test_a_schema_that_would_be_ignored_is_refused(response_format: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        with_schema({"response_format": response_format})
    assert caught.value.param == "response_format"
