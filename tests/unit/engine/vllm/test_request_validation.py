"""A FastAPI application that validates lists up to the first error."""

from __future__ import annotations

from typing import Any, NotRequired

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from rayllm.engine.vllm.request_validation import (
    describe_errors,
    describe_validation_error,
    lenient_validator,
    validate_cheaply,
)


class Item(BaseModel):
    name: str
    parts: list[int] = []


class Other(BaseModel):
    other: str


class Query(BaseModel):
    items: list[Item | Other | list[Item]]
    many: dict[str, list[int]] = {}
    count: int = 0


def application() -> FastAPI:
    app = FastAPI()

    @app.post("/")
    async def answer(query: Query) -> int:
        return len(query.items)

    app.middleware_stack = app.build_middleware_stack()
    validate_cheaply(app)
    return app


async def ask(body: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application()), base_url="http://x") as client:
        return await client.post("/", json=body)


async def test_what_is_right_is_answered() -> None:
    reply = await ask({"items": [{"name": "a", "parts": [1]}, {"other": "b"}, [{"name": "c"}]]})
    assert (reply.status_code, reply.json()) == (200, 3)


@pytest.mark.parametrize("fault", ["secret", {"name": 1, "secret": "secret" * 1000}, ["secret"] * 1000])
async def test_a_list_ends_with_its_first_fault(fault: Any) -> None:
    short, long = await ask({"items": [{"name": "a"}, fault]}), await ask({"items": [{"name": "a"}, *[fault] * 1000]})
    assert long.status_code == 400
    error = long.json()["error"]
    assert error == short.json()["error"]
    assert (error["param"], error["code"], error["type"]) == ("items", 400, "BadRequestError")
    assert error["message"].startswith("items.1")
    assert "secret" not in error["message"]
    assert len(error["message"]) < 1000


async def test_every_fault_elsewhere_is_told() -> None:
    error = (await ask({"items": 1, "count": "many"})).json()["error"]
    assert error["message"] == (
        "items: Input should be a valid list; "
        "count: Input should be a valid integer, unable to parse string as an integer."
    )


async def test_a_body_that_is_missing_is_told() -> None:
    error = (await ask(None)).json()["error"]
    assert (error["message"], error["param"]) == ("The request body is required.", None)


def finding(*place: str | int, said: str = "Field required") -> dict[str, Any]:
    kind = "missing" if said == "Field required" else "value_error"
    return {"type": kind, "loc": ("body", "function-wrap[__log_extra_fields__()]", *place), "msg": said, "input": 7}


@pytest.mark.parametrize(
    ("findings", "said", "param"),
    [
        ([finding("input")], "`input` is required.", "input"),
        (
            [finding("messages"), finding("input", "list[int]", said="Not a list")],
            "`messages` is required; input: Not a list.",
            "input",
        ),
        ([finding("times[]", 0, said="Input should be 'word'")], "times[].0: Input should be 'word'.", "times[]"),
        ([finding("messages", 0, "role", said="No.")], "messages.0.role: No.", "messages"),
        ([finding("n", said="No"), finding("n", said="No")], "n: No.", "n"),
        (["Unsupported Media Type"], "Unsupported Media Type", None),
        ([], "The request is not valid.", None),
    ],
)
def test_findings_become_sentences_and_name_the_requests_own_field(
    findings: list[Any], said: str, param: str | None
) -> None:
    assert describe_errors(findings) == (said, param)


class Options(TypedDict):
    name: str
    detail: NotRequired[str]
    note: NotRequired[str | None]
    schema: NotRequired[dict[str, Any]]


@dataclass
class Constraint:
    json: str | None = None
    strict: bool = False


class Nested(BaseModel):
    options: list[Options] = []
    constraint: Constraint | None = None
    renamed: int = Field(3, alias="count")
    usage: bool | None = True
    required: str


@pytest.mark.parametrize(
    ("sent", "as_if"),
    [
        ({"options": [{"name": "a", "detail": None}]}, {"options": [{"name": "a"}]}),
        ({"options": None, "count": None}, {}),
        ({"constraint": {"json": None, "strict": None}}, {"constraint": {}}),
        ({"constraint": None}, {}),
    ],
)
def test_a_null_is_absent_in_an_optional_field_at_any_depth(sent: dict[str, Any], as_if: dict[str, Any]) -> None:
    validator = lenient_validator(Nested.__pydantic_core_schema__)
    assert validator.validate_python({"required": "x", **sent}) == Nested(required="x", **as_if)


def test_a_null_that_a_field_takes_stays() -> None:
    validator = lenient_validator(Nested.__pydantic_core_schema__)
    option = {"name": "a", "note": None, "schema": {"const": None, "enum": [None]}}
    nested = validator.validate_python({"required": "x", "options": [option], "usage": None})
    assert (nested.options, nested.usage) == ([option], None)


def test_a_null_in_a_required_field_is_refused() -> None:
    validator = lenient_validator(Nested.__pydantic_core_schema__)
    with pytest.raises(ValidationError) as caught:
        validator.validate_python({"required": None, "options": [{"name": None}]})
    assert [error["loc"] for error in caught.value.errors()] == [("options", 0, "name"), ("required",)]


def test_an_error_of_a_model_is_a_sentence_without_pydantics_frame() -> None:
    with pytest.raises(ValidationError) as caught:
        Nested(required=1, options=[{"name": "a", "detail": 2}])
    said, param = describe_validation_error(caught.value)
    assert said == "options.0.detail: Input should be a valid string; required: Input should be a valid string."
    assert param == "options"


class Checked(BaseModel):
    size: int

    @field_validator("size")
    @classmethod
    def _is_small(cls, value: int) -> int:
        if value > 3:
            raise ValueError("must be at most 3")
        return value


def test_what_a_validator_says_has_no_prefix() -> None:
    with pytest.raises(ValidationError) as caught:
        Checked(size=4)
    assert describe_validation_error(caught.value) == ("size: must be at most 3.", "size")
