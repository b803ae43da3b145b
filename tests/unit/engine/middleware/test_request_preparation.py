"""Requests on their way to vLLM's application, with a fake adapter pool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, MESSAGES
from rayllm.core.errors import ModelNotFoundError, RequestError
from rayllm.engine.adapters.pool import adapter_plan
from rayllm.engine.middleware.error_translation import ErrorMiddleware
from rayllm.engine.middleware.request_preparation import PreparationMiddleware
from rayllm.engine.middleware.request_scope import RequestScopeMiddleware, echo_requested_name
from rayllm.engine.request_plan import RequestPlan
from rayllm.lora import Adapter

EMBEDDER = {"/v1/embeddings", "/v2/embed", "/pooling", "/tokenize", "/detokenize", "/some/other"}
OF_BASE, OF_X = RequestPlan(stop=("BASE",)), RequestPlan(stop=("END",))


class AdapterPool:
    """Has `x`, with settings of its own, and `y`, without."""

    def __init__(self) -> None:
        self.used: list[tuple[Adapter, str]] = []
        self.loaded: list[Adapter] = []
        self.in_use = 0

    async def load(self, adapter: Adapter) -> None:
        self.loaded.append(adapter)

    @asynccontextmanager
    async def use(self, adapter: Adapter, model: str) -> AsyncIterator[Any]:
        if adapter.name not in ("x", "y"):
            raise ModelNotFoundError("None of that name.", "model")
        self.used.append((adapter, model))
        self.in_use += 1
        try:
            yield SimpleNamespace(plan=OF_X if adapter.name == "x" else None)
        finally:
            self.in_use -= 1


async def accept(body: dict[str, Any]) -> dict[str, Any]:
    """Admits all as they are."""
    return body


async def through(
    path: str, body: bytes = b"{}", adapter_pool: Any = None, admit: Any = accept, **fields: str
) -> SimpleNamespace:
    """What vLLM's application is given, if the request reaches it, and what is sent to the client."""
    seen = SimpleNamespace(scope=None, body=None, then=None, plan=None, sent=[])
    messages = [
        {"type": "http.request", "body": body[:3], "more_body": True},
        {"type": "http.request", "body": body[3:], "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert adapter_pool is None or adapter_pool.in_use == (1 if "adapter" in fields else 0)
        seen.scope, seen.body, seen.plan = scope, (await receive())["body"], adapter_plan()
        seen.then = (await receive())["type"]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        seen.sent.append(message)

    names = {"content-length": "1", "x": "y"} | {
        f"x-rayllm-{name.replace('_', '-')}": value for name, value in fields.items()
    }
    headers = [(name.encode(), value.encode()) for name, value in names.items()]
    prepared = PreparationMiddleware(app, "m", EMBEDDER | {CHAT, MESSAGES}, adapter_pool, OF_BASE, admit)
    layers = RequestScopeMiddleware(ErrorMiddleware(prepared), lambda recording: None)
    await layers({"type": "http", "path": path, "headers": headers}, receive, send)
    assert adapter_pool is None or adapter_pool.in_use == 0
    return seen


# Endpoints.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/some/other"])
async def test_an_endpoint_that_the_model_lacks_is_answered_with_what_it_does(path: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("must not be reached")

    prepared = PreparationMiddleware(app, "m", EMBEDDER, None, OF_BASE, accept)
    with pytest.raises(RequestError) as caught:
        await prepared({"type": "http", "path": path, "headers": []}, None, None)  # type: ignore[arg-type]
    wanted = "chat (/v1/chat/completions)" if path == CHAT else "/some/other (/some/other)"
    assert caught.value.param == "model"
    assert caught.value.message == (
        f"The model `m` does not support {wanted}. It supports embeddings (/v1/embeddings, /v2/embed)"
        "; pooling (/pooling); tokenization (/tokenize, /detokenize)."
    )


async def test_a_path_of_vllms_that_we_do_not_offer_is_closed() -> None:
    assert (await through("/some/other")).sent[0]["status"] == 400


# Bodies.


async def test_the_body_and_its_length_are_rewritten() -> None:
    seen = await through(CHAT, json.dumps({"messages": []}).encode())
    assert json.loads(seen.body)["stop"] == ["BASE"]
    assert dict(seen.scope["headers"]) == {b"x": b"y", b"content-length": str(len(seen.body)).encode()}
    assert seen.then == "http.disconnect"


async def test_a_body_with_nothing_to_add_stays_byte_for_byte() -> None:
    raw = b'{ "input":  [1,2] }'
    assert (await through("/v1/embeddings", raw)).body == raw


async def test_a_body_that_is_not_admitted_is_refused_in_the_shape_of_its_api() -> None:
    async def admit(body: dict[str, Any]) -> dict[str, Any]:
        raise RequestError("No.", "tools")

    start, body = (await through(MESSAGES, admit=admit)).sent
    assert start["status"] == 400
    error = {"message": "No.", "type": "invalid_request_error", "param": "tools", "code": None}
    assert json.loads(body["body"]) == {"type": "error", "error": error}


# Adapters.


async def test_an_adapter_stays_loaded_until_the_reply_ends() -> None:
    adapter_pool = AdapterPool()
    seen = await through(CHAT, adapter_pool=adapter_pool, model="mine", adapter="x", adapter_path="/a%20b/%C3%A4")
    assert (seen.plan, json.loads(seen.body)["stop"]) == (OF_X, ["END"])
    assert adapter_pool.used == [(Adapter("m", "x", "/a b/ä"), "mine")]


async def test_an_adapter_is_fetched_anew_where_an_administrator_loads_it() -> None:
    adapter_pool = AdapterPool()
    fields = {"model": "mine", "adapter": "x", "adapter_path": "/p"}
    await through(CHAT, adapter_pool=adapter_pool, **fields)
    assert adapter_pool.loaded == []
    await through(CHAT, adapter_pool=adapter_pool, adapter_reload="1", **fields)
    assert adapter_pool.loaded == [Adapter("m", "x", "/p")]
    assert len(adapter_pool.used) == 2


async def test_the_base_model_and_an_adapter_without_settings_have_the_bases_plan() -> None:
    adapter_pool = AdapterPool()
    for fields in ({"model": "m"}, {"model": "m:y", "adapter": "y"}):
        seen = await through(CHAT, adapter_pool=adapter_pool, **fields)
        assert (seen.plan, json.loads(seen.body)["stop"]) == (None, ["BASE"])
    assert adapter_pool.used == [(Adapter("m", "y"), "m:y")]


async def test_an_adapter_that_does_not_exist_never_reaches_the_engine() -> None:
    seen = await through(CHAT, adapter_pool=AdapterPool(), model="m:z", adapter="z")
    assert (seen.scope, seen.sent[0]["status"]) == (None, 404)
    assert json.loads(seen.sent[1]["body"])["error"]["message"] == "None of that name."


async def test_replies_bear_the_name_that_was_asked_for_and_no_version() -> None:
    models = SimpleNamespace(model_name=lambda lora_request=None: lora_request or "m")
    echo_requested_name(models, ("m", "alias"))
    fields: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fields.append(models.model_name(scope["lora"]))

    for asked, lora in (("mine", "m:x@123"), ("alias", None), ("other", None)):
        scope = {"type": "http", "headers": [(b"x-rayllm-model", asked.encode())], "lora": lora}
        await RequestScopeMiddleware(app, lambda recording: None)(scope, None, None)  # type: ignore[arg-type]
    assert fields == ["mine", "alias", "m"]
