"""`GET /v1/usage`"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from rayllm.access import Caller
from rayllm.access.usage import today
from rayllm.serving.router.access.keys_api import Sums, Wanted, get_usage
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.errors import install_error_handlers

# Midnight may pass while the tests run.
DAY = today()
ALICE, BOB = (DAY, "alice", "m", "", '{"team": "search"}'), (DAY, "bob", "m", "x", "")
# Both routers read the first file.
ROUTERS: Sequence[Sums] = (
    {"a": [(ALICE, [1, 10, 2, 3])], "b": [(BOB, [1, 1, 1, 1])]},
    {"a": [(ALICE, [1, 10, 2, 3])], "c": [(ALICE, [2, 5, 0, 1])]},
)


async def get(caller: Caller, routers: Sequence[Sums] = ROUTERS, **query: str) -> httpx.Response:
    async def ask(wanted: Wanted) -> Sequence[Sums]:
        # As routers do: what others have used is not even sent.
        key = wanted[2]
        return [
            sums
            if isinstance(sums, str) or key is None
            else {file: [each for each in totals if each[0][1] == key] for file, totals in sums.items()}
            for sums in routers
        ]

    app = FastAPI()
    app.add_route("/v1/usage", partial(get_usage, ask, AdminKeys([])))
    install_error_handlers(app)

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "user": caller}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(called), base_url="http://router") as client:
        return await client.get("/v1/usage", params=query)


def row(requests: int, prompt: int, cached: int, completion: int, **groups: str) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion}
    return {**groups, "requests": requests, **counts}


async def test_a_key_sees_its_own_and_an_administrator_all() -> None:
    own = row(3, 15, 2, 4, key="alice", model="m")
    body = (await get(Caller("alice", "alice"))).json()
    assert (body["object"], body["data"], body["until"] in (DAY, today())) == ("list", [own], True)
    others = row(1, 1, 1, 1, key="bob", model="m")
    assert (await get(Caller("root", is_admin=True))).json()["data"] == [own, others]
    assert (await get(Caller())).status_code == 403


async def test_it_is_grouped_as_asked() -> None:
    admin = Caller("root", is_admin=True)
    assert (await get(admin, group_by="")).json()["data"] == [row(4, 16, 3, 5)]
    by_adapter = (await get(admin, group_by="adapter, day")).json()["data"]
    assert by_adapter == [row(3, 15, 2, 4, adapter="", day=DAY), row(1, 1, 1, 1, adapter="x", day=DAY)]


async def test_it_is_grouped_by_labels() -> None:
    rows = (await get(Caller("root", is_admin=True), group_by="label:team")).json()["data"]
    assert rows == [row(1, 1, 1, 1, **{"label:team": ""}), row(3, 15, 2, 4, **{"label:team": "search"})]


async def test_a_part_that_cannot_be_read_now_is_not_left_out() -> None:
    reply = await get(Caller("root", is_admin=True), [*ROUTERS, "The ledger is being read."])
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["message"] == "The ledger is being read."


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"group_by": "key,color"}, "`group_by` may have day, key, model, adapter and label:NAME, not `color`."),
        ({"since": "yesterday"}, "`since` must be a day, such as 2026-01-31."),
        ({"until": "../../etc"}, "`until` must be a day"),
        ({"limit": "1"}, "`limit` is not known; use group_by, since, until."),
    ],
)
async def test_what_it_does_not_take(query: dict[str, str], message: str) -> None:
    answer = await get(Caller("root", is_admin=True), **query)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
