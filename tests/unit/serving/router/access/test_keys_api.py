"""`GET /v1/keys`"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from rayllm.access import ANYONE, Caller, Key, Keyring
from rayllm.serving.router.access.keys_api import list_keys
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.errors import install_error_handlers

ROOT = Caller("root", is_admin=True)


def key(name: str, **fields: Any) -> Key:
    return Key(name=name, hash=f"{len(name):064x}", **fields)


KEYS = (
    key("root", admin=True),
    key("alice", tenant="research", models=["m", "m:*"], tokens_per_day=9, labels={"team": "search"}),
    key("bobby", priority="batch", expires="2020-01-31T00:00:00Z"),
)


async def get(caller: Caller, **query: str) -> httpx.Response:
    app = FastAPI()
    app.add_route("/v1/keys", partial(list_keys, lambda: Keyring(b"", KEYS), AdminKeys([])))
    install_error_handlers(app)

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "user": caller}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(called), base_url="http://router") as client:
        return await client.get("/v1/keys", params=query)


async def names(caller: Caller, **query: str) -> list[str]:
    return [each["name"] for each in (await get(caller, **query)).json()["data"]]


async def test_an_administrator_sees_all_keys_and_what_they_may_do() -> None:
    body = (await get(ROOT)).json()
    assert (body["first_id"], body["last_id"], body["has_more"]) == ("root", "bobby", False)
    assert body["data"][1] == {
        "object": "key",
        "name": "alice",
        "tenant": "research",
        "status": "active",
        "models": ["m", "m:*"],
        "requests_per_minute": None,
        "tokens_per_minute": None,
        "tokens_per_day": 9,
        "max_concurrent": None,
        "priority": "standard",
        "expires": None,
        "labels": {"team": "search"},
        "admin": False,
        "scrape": False,
    }
    expired = body["data"][2]
    assert (expired["status"], expired["expires"], expired["tenant"]) == ("expired", "2020-01-31T00:00:00Z", "bobby")


async def test_no_hash_is_told() -> None:
    body = (await get(ROOT)).text
    assert not [each.name for each in KEYS if each.hash in body]


async def test_another_key_sees_only_itself() -> None:
    assert await names(Caller("alice")) == ["alice"]
    # A token of an issuer is no key.
    assert await names(Caller("token:alice")) == []
    assert (await get(ANYONE)).status_code == 403


async def test_pages_follow_one_another() -> None:
    first = (await get(ROOT, limit="2")).json()
    assert ([each["name"] for each in first["data"]], first["has_more"]) == (["root", "alice"], True)
    assert await names(ROOT, limit="2", after=first["last_id"]) == ["bobby"]
    assert await names(ROOT, after="bobby") == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"after": "nobody"}, "after"),
        ({"until": "2026-01-31"}, "until"),
    ],
)
async def test_a_bad_parameter_is_named(query: dict[str, str], param: str) -> None:
    reply = await get(ROOT, **query)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_key_cannot_find_out_the_names_of_others() -> None:
    replies = [await get(Caller("alice"), after=name) for name in ("root", "none")]
    assert [reply.status_code for reply in replies] == [400, 400]
