"""Requests for adapters, with a fake adapter pool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from rayllm.core.endpoints import CHAT
from rayllm.core.errors import ModelNotFoundError
from rayllm.engine.middleware.adapter_loading import AdapterMiddleware, adapter_plan
from rayllm.engine.middleware.request_scope import RequestScopeMiddleware, echo_requested_name
from rayllm.engine.request_plan import RequestPlan
from rayllm.lora import Adapter

PLAN = RequestPlan(stop=("END",))


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
            yield SimpleNamespace(plan=PLAN if adapter.name == "x" else None)
        finally:
            self.in_use -= 1


async def through(adapter_pool: AdapterPool, **fields: str) -> tuple[list[RequestPlan | None], list[dict[str, Any]]]:
    """The plan that the application behind the gate sees, if it is reached, and what was sent."""
    plans: list[RequestPlan | None] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert adapter_pool.in_use == (1 if "adapter" in fields else 0)
        plans.append(adapter_plan())

    async def receive() -> Any:
        raise AssertionError("the body is not the gate's")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(f"x-rayllm-{name.replace('_', '-')}".encode(), value.encode()) for name, value in fields.items()]
    layers = RequestScopeMiddleware(AdapterMiddleware(app, adapter_pool, "m"))  # type: ignore[arg-type]
    await layers({"type": "http", "path": CHAT, "headers": headers}, receive, send)
    assert adapter_pool.in_use == 0
    return plans, sent


async def test_an_adapter_is_there_for_as_long_as_it_is_answered() -> None:
    adapter_pool = AdapterPool()
    assert await through(adapter_pool, model="mine", adapter="x", adapter_path="/a%20b/%C3%A4") == ([PLAN], [])
    assert adapter_pool.used == [(Adapter("m", "x", "/a b/ä"), "mine")]


async def test_an_adapter_is_fetched_anew_where_an_administrator_loads_it() -> None:
    adapter_pool = AdapterPool()
    await through(adapter_pool, model="mine", adapter="x", adapter_path="/p")
    assert adapter_pool.loaded == []
    await through(adapter_pool, model="mine", adapter="x", adapter_path="/p", adapter_reload="1")
    assert adapter_pool.loaded == [Adapter("m", "x", "/p")]
    assert len(adapter_pool.used) == 2


async def test_a_base_has_no_adapter_and_no_plan_but_its_own() -> None:
    adapter_pool = AdapterPool()
    assert await through(adapter_pool, model="m") == ([None], [])
    assert adapter_pool.used == []


async def test_an_adapter_without_settings_has_its_bases_plan() -> None:
    adapter_pool = AdapterPool()
    assert (await through(adapter_pool, model="m:y", adapter="y"))[0] == [None]
    assert adapter_pool.used == [(Adapter("m", "y"), "m:y")]


async def test_an_adapter_that_cannot_be_had_is_told_and_never_reaches_the_engine() -> None:
    plans, sent = await through(AdapterPool(), model="m:z", adapter="z")
    assert (plans, sent[0]["status"]) == ([], 404)
    assert json.loads(sent[1]["body"])["error"]["message"] == "None of that name."


async def test_replies_bear_the_name_that_was_asked_for_and_no_version() -> None:
    models = SimpleNamespace(model_name=lambda lora_request=None: lora_request or "m")
    echo_requested_name(models, ("m", "alias"))
    fields: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fields.append(models.model_name(scope["lora"]))

    for asked, lora in (("mine", "m:x@123"), ("alias", None), ("other", None)):
        headers = [(b"x-rayllm-model", asked.encode())]
        await RequestScopeMiddleware(app)({"type": "http", "headers": headers, "lora": lora}, None, None)  # type: ignore[arg-type]
    assert fields == ["mine", "alias", "m"]
