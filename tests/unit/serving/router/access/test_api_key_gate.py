"""The gate: which requests it admits, as whom, and how it refuses the others."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rayllm.access import Caller, Key, Keyring, caller_of
from rayllm.access.key import key_hash
from rayllm.core import asgi
from rayllm.core.endpoints import CHAT, COUNT_TOKENS, MESSAGES
from rayllm.core.errors import RayLLMError, UnavailableError
from rayllm.core.shares import Shares
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.gates import ApiKeyGate
from rayllm.serving.router.http.admin_keys import AdminKeys

SALT = b"s" * 32
KEYS = [
    Key(name="alice", hash=key_hash("sk-alice", SALT)),
    Key(name="root", hash=key_hash("sk-root", SALT), admin=True),
]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    caller = caller_of(scope)
    await JSONResponse([caller.name, caller.is_admin])(scope, receive, send)


class Gate:
    """A gate before an application that answers with the caller. It has the credentials, too."""

    issuer = None

    def __init__(self, most: int = 100) -> None:
        self.refused: list[RayLLMError] = []
        self.shares = Shares("requests", "setting", most, 1)
        admins = AdminKeys([key_hash("sk-admin", SALT)], SALT)
        self.app = ApiKeyGate(application, cast(Credentials, self), admins, self.refused.append, self.shares)

    @property
    def keyring(self) -> Keyring:
        return Keyring(SALT, KEYS)

    async def ask(self, path: str = CHAT, **headers: str) -> asgi.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await asgi.call(self.app, path, b"{}", named)


@pytest.mark.parametrize(
    ("path", "headers", "caller"),
    [
        (CHAT, {"authorization": "Bearer sk-alice"}, b'["alice",false]'),
        (CHAT, {"authorization": "bearer   sk-alice "}, b'["alice",false]'),
        ("/v1/models", {"authorization": "Bearer sk-root"}, b'["root",true]'),
        (CHAT, {"authorization": "Bearer sk-admin"}, b'["router:admin",true]'),
        (MESSAGES, {"x_api_key": "sk-alice"}, b'["alice",false]'),
        (COUNT_TOKENS, {"x_api_key": "sk-alice"}, b'["alice",false]'),
        (MESSAGES, {"authorization": "Bearer sk-alice"}, b'["alice",false]'),
        ("/health", {}, b'["",false]'),
    ],
)
async def test_who_is_admitted(path: str, headers: dict[str, str], caller: bytes) -> None:
    answer = await Gate().ask(path, **headers)
    assert (answer.status, answer.body) == (200, caller)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (CHAT, {}),
        (CHAT, {"authorization": ""}),
        (CHAT, {"authorization": "Bearer"}),
        (CHAT, {"authorization": "Bearer sk-bob"}),
        (CHAT, {"authorization": "Basic sk-alice"}),
        (CHAT, {"authorization": "sk-alice"}),
        (CHAT, {"x_api_key": "sk-alice"}),
        (CHAT, {"authorization": "Bearer " + "x" * 60_000}),
        ("/metrics", {}),
        ("/ready", {"authorization": "Bearer sk-bob"}),
        ("/no/such/path", {}),
        # What a URL is made of besides the path cannot make another one of it.
        (CHAT, {"host": "x/health?"}),
        (CHAT + "?/health", {}),
        ("/health/../v1/models", {}),
        ("/health;/v1/models", {}),
    ],
)
async def test_who_is_refused(path: str, headers: dict[str, str]) -> None:
    gate = Gate()
    answer = await gate.ask(path, **headers)
    assert answer.status == 401
    assert b'"code":"invalid_api_key"' in answer.body
    assert b"sk-" not in answer.body
    assert [error.status for error in gate.refused] == [401]


async def test_a_key_in_the_url_is_not_taken() -> None:
    gate = Gate()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing of a refused request's body is read")

    scope = {"type": "http", "path": CHAT, "root_path": "", "headers": [], "query_string": b"api_key=sk-alice"}
    await gate.app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert b"in a header" in sent[1]["body"]
    assert b"sk-alice" not in sent[1]["body"]


async def test_anthropics_clients_get_their_error() -> None:
    answer = await Gate().ask(MESSAGES, x_api_key="sk-bob")
    assert b'"type":"error"' in answer.body
    assert b'"type":"authentication_error"' in answer.body


async def test_without_keys_everyone_but_administrators_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(gate: Gate) -> Keyring:
        raise UnavailableError("The service cannot read its keys; its log says why.")

    monkeypatch.setattr(Gate, "keyring", property(unavailable))
    answer = await Gate().ask(authorization="Bearer sk-alice")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert (await Gate().ask(authorization="Bearer sk-admin")).status == 200
    assert (await Gate().ask("/health")).status == 200


async def test_calls_in_process_have_a_caller_already() -> None:
    answer = await asgi.call(Gate().app, CHAT, b"{}", {}, user=Caller("batch"))
    assert answer.body == b'["batch",false]'


def test_what_is_for_administrators() -> None:
    admins = AdminKeys([])
    admins.check(Request({"type": "http", "headers": [], "user": Caller("root", is_admin=True)}))
    with pytest.raises(match="`alice`"):
        admins.check(Request({"type": "http", "headers": [], "user": Caller("alice")}))


async def test_a_tenant_gets_only_its_share_at_paths_without_a_model() -> None:
    gate = Gate(4)
    with gate.shares.holding("alice") as enter:
        enter(2)
        answer = await gate.ask("/v1/files", authorization="Bearer sk-alice")
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await gate.ask("/v1/files", authorization="Bearer sk-root")).status == 200
        # The forwarder counts those that have arrived.
        assert (await gate.ask(CHAT, authorization="Bearer sk-alice")).status == 200
        assert gate.shares.held == {"alice": 2}
