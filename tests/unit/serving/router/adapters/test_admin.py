"""Loading and unloading adapters by name, over HTTP, with a fake replica and a fake registry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from rayllm.access.key import key_hash
from rayllm.config import load_app
from rayllm.core.errors import RayLLMError, RequestError, UnavailableError
from rayllm.lora import Adapter
from rayllm.routing.request import RoutingRequest
from rayllm.serving.router.adapters.admin import AdapterAdmin
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.errors import install_error_handlers
from rayllm.serving.router.model_registry import ModelRegistry, ResolvedModel
from tests.fakes.adapter_registry import AdapterRegistry

KEY = "s3cret"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
X = {"lora_name": "q:x", "lora_path": "/x"}


class Replica:
    """Validates any adapter, unless it has an error scripted."""

    def __init__(self) -> None:
        self.error: RayLLMError | None = None
        self.answer = (200, b"{}")
        self.asked: list[tuple[str, str]] = []
        self.tried: list[dict[str, str]] = []

    async def dispatch(
        self, model_id: str, request: RoutingRequest, carry: Callable[[Any, Any], Awaitable[Any]]
    ) -> Any:
        self.asked.append((model_id, request.adapter))
        return await carry(self, None)

    @asynccontextmanager
    async def send(
        self, replica: Any, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Any]:
        assert (method, path, json.loads(body)["tokens"]) == ("POST", "/detokenize", [])
        self.tried.append(dict(headers))
        status, answer = self.answer
        if self.error:
            status, answer = self.error.status, json.dumps(self.error.body()).encode()

        async def read() -> bytes:
            return answer

        yield SimpleNamespace(status=status, content=SimpleNamespace(read=read))


class RouterApplication:
    """The two endpoints over HTTP."""

    def __init__(self, *bases: str, keys: tuple[str, ...] = (KEY,)) -> None:
        lora: dict[str, Any] = {"dynamic_lora_loading_path": "/a"}
        models = [{"model_loading_config": {"model_id": base}, "lora_config": dict(lora)} for base in bases]
        for model in models[:1]:
            model["lora_config"]["lora_modules"] = ["fixed=/fixed"]
        plain = {"model_loading_config": {"model_id": "plain"}}
        router = {"model_aliases": {"gpt": "plain"}}
        models = ModelRegistry(load_app({"llm_configs": [*models, plain], "router": router}))
        self.registry, self.replica = AdapterRegistry(), Replica()
        digests = [key_hash(key, b"") for key in keys]
        replica: Any = self.replica
        admin = AdapterAdmin(models, self.registry, replica, replica, AdminKeys(digests))  # type: ignore[arg-type]
        self._app = FastAPI()
        self._app.add_api_route(LOAD, admin.load, methods=["POST"])
        self._app.add_api_route(UNLOAD, admin.unload, methods=["POST"])
        install_error_handlers(self._app)

    async def post(self, path: str, body: Any, authorization: str | None = f"Bearer {KEY}") -> httpx.Response:
        headers = {"authorization": authorization} if authorization is not None else {}
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            return await client.post(path, json=body, headers=headers)


async def refusal(service: RouterApplication, path: str, body: Any) -> tuple[int, str, str]:
    """Status, field at fault and message; nothing was registered."""
    known = dict(service.registry.known)
    reply = await service.post(path, body)
    assert service.registry.known == known
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["message"]


async def test_an_adapter_is_tried_then_known_then_forgotten() -> None:
    service = RouterApplication("q")
    reply = await service.post(LOAD, X)
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'q:x' added successfully.")
    assert service.replica.asked == [("q", "x")]
    [headers] = service.replica.tried
    assert headers.items() >= ResolvedModel.for_adapter(Adapter("q", "x", "/x")).headers("q:x").items()
    assert service.registry.known == {"q:x": Adapter("q", "x", "/x")}
    reply = await service.post(UNLOAD, {"lora_name": "q:x"})
    assert (reply.status_code, service.registry.known) == (200, {})


async def test_without_keys_nobody_may() -> None:
    for path in (LOAD, UNLOAD):
        reply = await RouterApplication("q", keys=()).post(path, X)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "permission_denied")


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", KEY, f"Basic {KEY}"])
async def test_another_key_is_none(authorization: str | None) -> None:
    service = RouterApplication("q")
    for path in (LOAD, UNLOAD):
        reply = await service.post(path, X, authorization)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert service.replica.tried == []


async def test_each_of_the_keys_opens() -> None:
    for key in ("a", "b"):
        assert (await RouterApplication("q", keys=("a", "b")).post(LOAD, X, f"bearer {key}")).status_code == 200


async def test_a_variable_that_is_empty_is_no_key() -> None:
    for authorization in ("Bearer", "Bearer ", "bearer  "):
        assert (await RouterApplication("q", keys=("",)).post(LOAD, X, authorization)).status_code == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_path": "/x"}, "lora_name"),
        ({"lora_name": "q:x"}, "lora_path"),
        ({"lora_name": "", "lora_path": "/x"}, "lora_name"),
        (X | {"lora_int_id": 3}, "lora_int_id"),
        (X | {"lora_name": 7}, "lora_name"),
        (X | {"lora_path": ["/x"]}, "lora_path"),
        (X | {"load_inplace": "yes"}, "load_inplace"),
        (X | {"lora_name": "q"}, "lora_name"),
        (X | {"lora_name": "gpt"}, "lora_name"),
        (X | {"lora_name": "plain:x"}, "lora_name"),
        (X | {"lora_name": "q:../x"}, "lora_name"),
        (X | {"lora_name": "q:x\n"}, "lora_name"),
        ([], None),
    ],
)
async def test_what_cannot_be_loaded_names_the_field(body: Any, param: str | None) -> None:
    service = RouterApplication("q")
    assert (await refusal(service, LOAD, body))[:2] == (400, param)
    assert service.replica.tried == []


async def test_what_is_loaded_is_replaced_only_where_asked_for() -> None:
    service = RouterApplication("q")
    await service.post(LOAD, X)
    status, param, message = await refusal(service, LOAD, X | {"lora_path": "/y"})
    assert (status, param) == (400, "lora_name")
    assert "`load_inplace: true`" in message
    assert (await service.post(LOAD, X | {"lora_path": "/y", "load_inplace": True})).status_code == 200
    assert service.registry.known["q:x"].source == "/y"


async def test_a_bare_name_is_for_the_only_base_there_is() -> None:
    service = RouterApplication("q")
    await service.post(LOAD, X | {"lora_name": "mine"})
    assert service.registry.known == {"mine": Adapter("q", "mine", "/x")}
    for bases, hint in ((("q", "r"), "`q:<name>`, `r:<name>`"), ((), "no model here has a `lora_config`")):
        status, param, message = await refusal(RouterApplication(*bases), LOAD, X | {"lora_name": "mine"})
        assert (status, param) == (400, "lora_name")
        assert hint in message


async def test_one_adapter_has_one_name() -> None:
    """`x` and `q:x` would be two adapters of one name in the engine, each driving the other out."""
    service = RouterApplication("q")
    await service.post(LOAD, X)
    status, _, message = await refusal(service, LOAD, {"lora_name": "x", "lora_path": "/y", "load_inplace": True})
    assert (status, "is registered already, as `q:x`" in message) == (400, True)


async def test_an_adapter_of_the_configuration_keeps_its_place() -> None:
    service = RouterApplication("q")
    for name in ("fixed", "q:fixed"):
        status, param, message = await refusal(service, LOAD, X | {"lora_name": name})
        assert (status, param, "`lora_modules`" in message) == (400, "lora_name", True)


async def test_an_adapter_that_was_never_loaded_cannot_be_unloaded() -> None:
    assert (await refusal(RouterApplication("q"), UNLOAD, {"lora_name": "q:x"}))[:2] == (404, "lora_name")


async def test_what_the_replica_says_against_it_is_told() -> None:
    service = RouterApplication("q")
    service.replica.error = RequestError("It has no config.", "model", "adapter_broken")
    assert await refusal(service, LOAD, X) == (400, "lora_path", "It has no config.")


async def test_a_replica_that_fails_loads_nothing() -> None:
    service = RouterApplication("q")
    service.replica.answer = (500, b"plain text")
    assert (await refusal(service, LOAD, X))[0] == 500
    service.replica.answer = (503, json.dumps(UnavailableError("full").body()).encode())
    assert (await refusal(service, LOAD, X))[0] == 500


async def test_an_engine_that_cannot_write_tokens_back_has_the_adapter_all_the_same() -> None:
    service = RouterApplication("q")
    service.replica.error = RequestError("No tokens.", "tokens")
    assert (await service.post(LOAD, X)).status_code == 200
