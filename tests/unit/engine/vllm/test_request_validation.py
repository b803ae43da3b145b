"""A FastAPI application that validates lists up to the first error."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from rayllm.engine.vllm.request_validation import describe_errors, validate_cheaply


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
    assert (error["message"], error["param"]) == ("Field required.", None)


def finding(*place: str | int, said: str = "Field required", kind: str = "missing") -> dict[str, Any]:
    return {"type": kind, "loc": ("body", "function-wrap[__log_extra_fields__()]", *place), "msg": said, "input": 7}


@pytest.mark.parametrize(
    ("findings", "said", "param"),
    [
        ([finding("input")], "input: Field required.", "input"),
        (
            [finding("messages"), finding("input", "list[int]", said="Not a list", kind="list_type")],
            "messages: Field required; input: Not a list.",
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
