"""Tokens of an issuer, with keys that are really fetched."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from pydantic import ValidationError

from rayllm.access import Caller
from rayllm.access.oidc import is_token
from rayllm.config import OidcConfig
from rayllm.core.errors import AuthenticationError, UnavailableError
from rayllm.serving.router.access import token_issuer
from rayllm.serving.router.access.token_issuer import TokenIssuer
from tests.issuer import Issuer, listening


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with listening() as issuer:
        yield issuer


def known(issuer: Issuer, **options: Any) -> TokenIssuer:
    return TokenIssuer(OidcConfig(issuer=issuer.url, audience="rayllm", **options))


async def refusal(tokens: TokenIssuer, token: str) -> str:
    with pytest.raises(AuthenticationError) as refused:
        await tokens.caller(token)
    assert token not in refused.value.message
    return refused.value.message


async def test_a_token_has_a_caller(issuer: Issuer) -> None:
    tokens = known(issuer)
    assert await tokens.caller(issuer.token()) == Caller("oidc:alice", "oidc:alice")
    assert issuer.fetched == ["/.well-known/openid-configuration", "/keys"]
    for name in ("bob", "carol|2"):
        assert (await tokens.caller(issuer.token(sub=name))).name == f"oidc:{name}"
    assert len(issuer.fetched) == 2


async def test_claims_say_what_it_may_do(issuer: Issuer) -> None:
    claims = {"name_claim": "email", "tenant_claim": "team", "models_claim": "models", "admin_claim": "root"}
    tokens = known(issuer, **claims, jwks_url=f"{issuer.url}/keys", requests_per_minute=5)
    token = issuer.token(email="a@x.org", team="research", models=["llama", "qwen-*"], root=True)
    limits = {"requests": 5}
    assert await tokens.caller(token) == Caller("oidc:a@x.org", "research", ("llama", "qwen-*"), True, limits)
    assert not (await tokens.caller(issuer.token(email="a", team="t", models=[], root="true"))).is_admin
    assert issuer.fetched == ["/keys"]


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": 1_700_000_000}, "has expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"aud": "other"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"iss": "https://elsewhere.example.com"}, "Invalid issuer"),
        ({"nbf": 4_000_000_000}, "not yet valid"),
        ({"sub": None}, "claim `sub` must be a text"),
        ({"sub": "a" * 200}, "claim `sub` must be a text"),
        ({"sub": "a\nb"}, "claim `sub` must be a text"),
        ({"models": "llama"}, "claim `models` must be a list"),
        ({"models": [1]}, "claim `models` must be a list"),
    ],
)
async def test_other_tokens_are_refused(issuer: Issuer, claims: dict[str, Any], message: str) -> None:
    tokens = known(issuer, models_claim="models")
    assert message in await refusal(tokens, issuer.token(**{"models": [], **claims}))


async def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    assert await known(issuer).caller(issuer.token(exp=time.time() - 10, nbf=time.time() + 10))


async def test_forged_tokens_are_refused(issuer: Issuer) -> None:
    tokens, token = known(issuer), issuer.token()
    head, body, signature = token.split(".")
    forged = {**json.loads(base64.urlsafe_b64decode(body + "==")), "sub": "root"}
    other_body = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
    assert "not valid" in await refusal(tokens, f"{head}.{other_body}.{signature}")
    for algorithm, key in (("none", ""), ("HS256", "x" * 32)):
        unsigned = jwt.encode(forged, key, algorithm, headers={"kid": "first"})  # type: ignore[arg-type]
        assert "not valid" in await refusal(tokens, unsigned)
    with listening() as other:
        assert "not valid" in await refusal(tokens, other.token(iss=issuer.url))
    for broken in ("eyJ.e.e", "eyJhbGciOiJSUzI1NiJ9..", f"{head}.{body}."):
        assert "not valid" in (await refusal(tokens, broken)).replace("does not have", "not valid")


async def test_new_keys_are_fetched_and_dropped_keys_forgotten(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_issuer, "_UNKNOWN_S", 0.0)
    tokens = known(issuer)
    old = issuer.token()
    await tokens.caller(old)
    issuer.add_key("second", "ES256")
    assert await tokens.caller(issuer.token("second"))
    issuer.drop_key("first")
    issuer.add_key("third")
    assert await tokens.caller(issuer.token("third"))
    assert "does not have" in await refusal(tokens, old)


async def test_tokens_of_unknown_keys_cost_the_issuer_nothing(issuer: Issuer) -> None:
    tokens = known(issuer)
    await tokens.caller(issuer.token())
    issuer.add_key("unknown")
    for _ in range(20):
        assert "does not have" in await refusal(tokens, issuer.token("unknown"))
    assert len(issuer.fetched) == 2


async def test_while_the_issuer_is_away_its_keys_stay(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_issuer, "_UNKNOWN_S", 0.0)
    issuer.is_away = True
    tokens = known(issuer)
    with pytest.raises(UnavailableError, match="cannot be fetched"):
        await tokens.caller(issuer.token())
    issuer.is_away = False
    await tokens.caller(issuer.token())
    issuer.is_away = True
    issuer.add_key("unknown")
    await refusal(tokens, issuer.token("unknown"))
    assert await tokens.caller(issuer.token(sub="bob"))


async def test_a_set_of_keys_is_read_whole_but_not_without_end(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_issuer, "_UNKNOWN_S", 0.0)
    document, padding = issuer.document, "x" * 1024 * 1024
    monkeypatch.setattr(issuer, "document", lambda path: {"pad": padding, **(document(path) or {})})
    tokens = known(issuer)
    with pytest.raises(UnavailableError):
        await tokens.caller(issuer.token())
    assert "more than 1048576 bytes" in caplog.text
    padding = padding[:900_000]
    assert await tokens.caller(issuer.token())


@pytest.mark.parametrize("odd", [[1], "x", {"keys": 5}, {"keys": [1]}, {"keys": {"a": "b"}}, {"keys": [{"kty": []}]}])
async def test_what_an_issuer_sends_never_ends_the_fetching(
    issuer: Issuer, odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_issuer, "_UNKNOWN_S", 0.01)
    document = issuer.document
    monkeypatch.setattr(issuer, "document", lambda path: odd)
    tokens = known(issuer, jwks_url=f"{issuer.url}/keys")
    tokens.start()
    while len(issuer.fetched) < 3:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(issuer, "document", document)
    while tokens._keys is None:
        await asyncio.sleep(0.01)
    assert await tokens.caller(issuer.token())
    tokens.stop()


async def test_tokens_of_unknown_keys_delay_no_other_tokens(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_issuer, "_UNKNOWN_S", 0.0)
    tokens, document, held = known(issuer), issuer.document, threading.Event()
    await tokens.caller(issuer.token())
    issuer.add_key("new")
    monkeypatch.setattr(issuer, "document", lambda path: held.wait() and document(path))
    unknown = [asyncio.create_task(tokens.caller(issuer.token("new", sub=name))) for name in ("bob", "carol")]
    while len(issuer.fetched) == 2:
        await asyncio.sleep(0.01)
    assert (await tokens.caller(issuer.token(sub="dora"))).name == "oidc:dora"
    unknown[0].cancel()
    held.set()
    assert (await unknown[1]).name == "oidc:carol"
    assert len(issuer.fetched) == 4, "a client that leaves ends no fetch"


async def test_what_was_verified_is_remembered_until_it_expires(issuer: Issuer) -> None:
    now = [time.time()]
    tokens = TokenIssuer(OidcConfig(issuer=issuer.url, audience="rayllm"), lambda: now[0])
    token = issuer.token(exp=time.time() + 100)
    assert await tokens.caller(token) is await tokens.caller(token)
    first = await tokens.caller(token)
    now[0] += 101
    assert await tokens.caller(token) is not first


def test_what_looks_like_a_token() -> None:
    assert is_token("eyJhbGciOiJSUzI1NiJ9.e30.c2ln")
    for other in ("", "sk-rayllm-abc", "a.b.c", "eyJabc", "eyJ.a.b.c"):
        assert not is_token(other)


@pytest.mark.parametrize("values", [{"issuer": "example.com"}, {"audience": None}, {"jwks_url": "/keys"}, {"color": 1}])
def test_wrong_options_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        OidcConfig.model_validate({"issuer": "https://example.com", "audience": "a", **values})
